package policy

import (
	"sync"
	"sync/atomic"
)

const (
	// inlineCost is the most comparisons made while a packet waits; longer evaluations are
	// deferred. A comparison takes some 30 ns.
	inlineCost = 64
	// maxCached bounds the bytes of the answers of one chain.
	maxCached = 512 << 10
	// answerBytes is the size of an answer beyond its rules and what its key refers to.
	answerBytes = 256
)

// cache remembers which rules of one chain select the peers that were evaluated. Chains and peers
// are immutable, so caching and eviction never change a verdict. It evicts random answers.
type cache struct {
	mu      sync.RWMutex
	answers map[key]*answer
	bytes   int
}

// key determines the result of an evaluation by one chain. It holds no reference to a pod or a
// chain, so these can be freed.
type key struct {
	port     uint64   // a namedKey when looking up named ports, else 0
	peer     peer     // without the pod
	identity string   // of the pod, see identify
	pod      *Version // set if the pod has no identity
}

// answer is the result of an evaluation.
type answer struct {
	index, port uint64
	bytes       int
	rules       atomic.Pointer[set] // nil once evicted
}

// pending is the answer of evaluations that are deferred.
var pending = &answer{}

// Evaluation is an evaluation that is too slow for the packet path. Packets that need it stay
// undecided until it has run.
type Evaluation struct {
	index *index
	key   key
	peer  peer
}

// Run evaluates and caches the result.
func (e *Evaluation) Run() { e.index.remember(e.key, e.peer, e.index.evaluate(e.peer, e.key.port)) }

// recall returns the rules of x that p matches, from the cache if possible. It returns false if the
// evaluation is deferred.
func (f *flow) recall(x *index, p peer, port uint64) (set, bool) {
	if p.pod != nil && p.pod.Version == nil {
		return x.evaluate(p, port), true
	}
	if rules := x.latest(p, port); rules != nil {
		return *rules, true
	}
	var room [identityBytes]byte
	version, identity := x.identify(p, port, room[:0])
	a := x.cache.find(port, p, version, identity)
	if a == pending && f.deferred != nil {
		return nil, false
	}
	if rules := a.known(); rules != nil {
		a.note(p)
		return *rules, true
	}
	k := key{port, p.withoutPod(), string(identity), version}
	if f.deferred != nil && x.cost(p, port, inlineCost) > inlineCost {
		x.cache.postpone(&Evaluation{x, k, p}, f.deferred)
		return nil, false
	}
	rules := x.evaluate(p, port)
	x.remember(k, p, rules)
	return rules, true
}

func (p peer) withoutPod() peer {
	p.pod = nil
	return p
}

// known returns the rules of a, which may be nil, unless it is evicted or pending.
func (a *answer) known() *set {
	if a == nil {
		return nil
	}
	return a.rules.Load()
}

// find returns the answer for p, nil if there is none.
func (c *cache) find(port uint64, p peer, version *Version, identity []byte) *answer {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.answers[key{port, p.withoutPod(), string(identity), version}]
}

// postpone queues e. If the queue is full it drops e: the packet comes back.
func (c *cache) postpone(e *Evaluation, queue chan<- *Evaluation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case queue <- e:
		c.put(e.key, pending)
	default:
	}
}

// remember caches that p, which has this key, matches rules.
func (x *index) remember(k key, p peer, rules set) {
	a := &answer{index: x.id, port: k.port, bytes: answerBytes + len(k.identity) + rules.bytes()}
	if k.peer.names != nil {
		for _, name := range *k.peer.names {
			a.bytes += 16 + len(name)
		}
	}
	a.rules.Store(&rules)
	x.cache.mu.Lock()
	defer x.cache.mu.Unlock()
	x.cache.put(k, a)
	a.note(p)
}

// put stores an answer and evicts others to make room. The caller holds the lock.
func (c *cache) put(k key, a *answer) {
	if c.answers == nil {
		c.answers = make(map[key]*answer)
	}
	c.evict(k, c.answers[k])
	for other, old := range c.answers { // in random order
		if c.bytes+a.bytes <= maxCached {
			break
		}
		c.evict(other, old)
	}
	c.answers[k] = a
	c.bytes += a.bytes
}

// evict removes the answer for k, which may be nil. Pods that note it do not keep its rules.
func (c *cache) evict(k key, a *answer) {
	if a != nil {
		delete(c.answers, k)
		c.bytes -= a.bytes
		a.rules.Store(nil)
	}
}
