package flows

import (
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

const (
	// shards is the number of shards, so that workers rarely wait for each other.
	shards = 32
	// bufferLen is how many different decisions a shard holds until it is drained.
	bufferLen = 128
	// slots is the size of a shard's index: twice bufferLen, so that most look-ups need one
	// probe.
	slots = 2 * bufferLen
	// probes is how many slots a look-up tries.
	probes = 8
	// attempts is how often a locked shard is tried.
	attempts = 64
)

// decided counts equal decisions of one snapshot about similar packets, see isLike.
type decided struct {
	packet      packet.Packet // the first of them
	decision    policy.Decision
	snapshot    *policy.Snapshot
	would       policy.Decision // with audited policies, if audited
	audited     bool
	first, last time.Time
	count       uint64
}

// buffer holds the decisions since it was last drained. Its methods may be called from any
// goroutine. add does not block or allocate.
type buffer struct {
	seed   packet.Seed
	shards [shards]shard
	half   chan struct{} // signals that a shard is half full
	lost   atomic.Uint64 // decisions for which there was no room
}

// shard is a part of a buffer.
type shard struct {
	mu      sync.Mutex
	current *entries
	spare   *entries // empty; used by drain only
	_       [64]byte // padding: threads use different shards, so each has its own cache line
}

// entries are decisions, found by hash.
type entries struct {
	n     int
	index [slots]uint8 // index in all plus 1; 0 is free
	all   [bufferLen]decided
}

func newBuffer(seed packet.Seed) *buffer {
	b := &buffer{seed: seed, half: make(chan struct{}, 1)}
	for i := range b.shards {
		b.shards[i].current, b.shards[i].spare = new(entries), new(entries)
	}
	return b
}

// add counts a decision.
func (b *buffer) add(ev *event.Event) {
	hash := ev.Query.Packet.Hash(b.seed)
	shard := &b.shards[hash%shards]
	for range attempts {
		if !shard.mu.TryLock() {
			continue
		}
		n, ok := shard.current.add(hash/shards, ev)
		shard.mu.Unlock()
		if !ok {
			b.lost.Add(1)
		}
		if n == bufferLen/2 {
			b.signal()
		}
		return
	}
	b.lost.Add(1)
}

func (b *buffer) signal() {
	select {
	case b.half <- struct{}{}:
	default:
	}
}

// add returns the number of entries if it added one, else 0. It reports false if there is no
// room.
func (e *entries) add(hash uint64, ev *event.Event) (n int, ok bool) {
	for i := range uint64(probes) {
		slot := &e.index[(hash+i)%slots]
		if *slot == 0 {
			if e.n == bufferLen {
				return 0, false
			}
			e.all[e.n] = decided{packet: ev.Query.Packet, decision: ev.Decision, snapshot: ev.Snapshot, first: ev.At, last: ev.At, count: 1}
			if ev.Audit == event.AuditDiffers {
				e.all[e.n].would, e.all[e.n].audited = ev.Would, true
			}
			e.n++
			*slot = uint8(e.n)
			return e.n, true
		}
		if known := &e.all[*slot-1]; known.isLike(ev) {
			known.count++
			known.last = ev.At
			return 0, true
		}
	}
	return 0, false
}

// isLike reports whether a decision differs only in source port and time.
func (k *decided) isLike(ev *event.Event) bool {
	p, audited := &ev.Query.Packet, ev.Audit == event.AuditDiffers
	if k.audited != audited || audited && k.would != ev.Would {
		return false
	}
	return k.snapshot == ev.Snapshot && k.packet.Dst == p.Dst && k.packet.Src.Addr() == p.Src.Addr() && k.packet.Proto == p.Proto && k.decision == ev.Decision
}

// drain removes all decisions and calls yield with each. It must not be called concurrently.
func (b *buffer) drain(yield func(*decided)) {
	for i := range b.shards {
		full := b.shards[i].swap()
		if full == nil {
			continue
		}
		for i := range full.all[:full.n] {
			yield(&full.all[i])
		}
		clear(full.all[:full.n]) // keep no reference to a snapshot
		full.n, full.index = 0, [slots]uint8{}
		b.shards[i].spare = full
	}
}

// swap empties a shard and returns its decisions, nil if there are none.
func (s *shard) swap() *entries {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.n == 0 {
		return nil
	}
	full := s.current
	s.current, s.spare = s.spare, nil
	return full
}
