package flows

import (
	"sync/atomic"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

const (
	// recentSlots is how many UDP flows are distinguished that were allowed lately. Flows
	// with the same slot displace each other: late answers are then recorded like first packets.
	recentSlots = 1 << 12
	// recentWindow is the time that counts as lately. The kernel forgets a UDP connection
	// after two minutes without a packet at most, but also when its table is flushed.
	recentWindow = DeniedWindow
)

// recent has the UDP flows that were allowed lately. It takes no lock: a flow may be
// missing, or be found although only one with an equal hash was allowed.
type recent struct {
	seed  packet.Seed
	epoch time.Time
	// slots are words of 20 bits of a hash and of the minute since epoch in 12, which begins
	// again after three days. 0 is free.
	slots [recentSlots]atomic.Uint32
}

const (
	minuteBits = 12
	maxMinute  = 1<<minuteBits - 1
)

// word returns the slot of the flow of p, and what it has if a packet was allowed at a time.
func (r *recent) word(p *packet.Packet, at time.Time) (slot *atomic.Uint32, word uint32) {
	hash := p.Hash(r.seed)
	minute := uint32(at.Sub(r.epoch)/time.Minute) & maxMinute
	return &r.slots[hash%recentSlots], uint32(hash>>32)&^maxMinute | minute
}

// add records that a packet of the flow of p was allowed.
func (r *recent) add(p *packet.Packet, at time.Time) {
	slot, word := r.word(p, at)
	slot.Store(word)
}

// has reports whether a packet of the flow of p was allowed lately.
func (r *recent) has(p *packet.Packet, at time.Time) bool {
	slot, now := r.word(p, at)
	word := slot.Load()
	age := time.Duration((now-word)&maxMinute) * time.Minute
	return word != 0 && word&^maxMinute == now&^maxMinute && age <= recentWindow
}

// Answers reports whether p is from the destination of a UDP flow that was allowed lately to
// its source, so that it may be an answer. The port of p's destination does not count: the
// kernel remembers verdicts without it. Answers neither waits nor allocates.
func (r *Recorder) Answers(p *packet.Packet, at time.Time) bool {
	return r.recent.has(&packet.Packet{Src: p.Dst, Dst: p.Src, Proto: p.Proto}, at)
}
