package enforce

import (
	"sync/atomic"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

const (
	// recentSlots is how many recently allowed UDP flows are distinguished. Flows with the same
	// slot displace each other: late answers are then recorded like first packets.
	recentSlots = 1 << 12
	// recentWindow is how long an allowed flow counts as recent. The kernel forgets an idle
	// UDP connection after two minutes at most, and any connection when its table is flushed.
	recentWindow = time.Hour
)

// queries holds recently allowed UDP flows. It takes no lock: a flow may be missing, or be
// found although only one with an equal hash was allowed.
type queries struct {
	seed  packet.Seed
	epoch time.Time
	// A slot holds 20 bits of a hash and the minute since epoch in 12 bits, which wraps after
	// three days. 0 is free.
	slots [recentSlots]atomic.Uint32
}

const (
	minuteBits = 12
	maxMinute  = 1<<minuteBits - 1
)

// word returns the slot for the flow of p, and its value if a packet is allowed at this time.
func (q *queries) word(p *packet.Packet, at time.Time) (slot *atomic.Uint32, word uint32) {
	hash := p.Hash(q.seed)
	minute := uint32(at.Sub(q.epoch)/time.Minute) & maxMinute
	return &q.slots[hash%recentSlots], uint32(hash>>32)&^maxMinute | minute
}

// add records that a packet of the flow of p was allowed.
func (q *queries) add(p *packet.Packet, at time.Time) {
	slot, word := q.word(p, at)
	slot.Store(word)
}

// has reports whether a packet of the flow of p was allowed recently.
func (q *queries) has(p *packet.Packet, at time.Time) bool {
	slot, now := q.word(p, at)
	word := slot.Load()
	age := time.Duration((now-word)&maxMinute) * time.Minute
	return word != 0 && word&^maxMinute == now&^maxMinute && age <= recentWindow
}

// answers reports whether p may be an answer: it is in the reverse direction of a recently
// allowed UDP flow. The destination port of p is ignored, because the kernel remembers
// verdicts without it. answers does not block or allocate.
func (q *queries) answers(p *packet.Packet, at time.Time) bool {
	return q.has(&packet.Packet{Src: p.Dst, Dst: p.Src, Proto: p.Proto}, at)
}
