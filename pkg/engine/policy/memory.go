package policy

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// DefaultMemory is the budget of a Memory in bytes.
const DefaultMemory = 64 << 20

const (
	// inlineCost is the most comparisons made while a packet waits; longer evaluations are
	// deferred. A comparison takes some 30 ns.
	inlineCost = 64
	// maxDeferred bounds the pending evaluations.
	maxDeferred = 1024
	// bucketEntries is the number of slots of a bucket.
	bucketEntries = 8
	minBuckets    = 8
	// entryBytes is the overhead of an entry beyond its set and its references: the struct, table
	// slots and allocator overhead.
	entryBytes = 192
)

// Memory caches which rules select a peer, for all chains of a cluster. Entries are computed from
// immutable chains and peers, so caching and eviction never change a verdict. It stays within a
// budget of bytes and evicts roughly the least recently used entries. Its methods may be called
// from any goroutine.
type Memory struct {
	budget   int64
	seed     maphash.Seed
	secret   uint64
	table    atomic.Pointer[table]
	deferred chan *Evaluation

	used    atomic.Int64
	evicted atomic.Uint64

	mu   sync.Mutex // held by writers to the table
	hand int        // clock hand: the bucket that evict looked at last
}

// table is a hash table of a power of two buckets. It is read without a lock.
type table []bucket

type bucket [bucketEntries]atomic.Pointer[entry]

// key, for a pod together with its identity, determines the result of an evaluation. It holds no
// reference to a pod or a chain, so these can be freed.
type key struct {
	index uint64
	port  uint64   // namedKey when looking up named ports, else 0
	pod   *Version // set if the pod has no identity
	node  *Host
	names *Names
	scope scope
}

// hiddenKey is the namedKey of packets with hidden ports.
const hiddenKey = 2 << 32

// namedKey encodes the protocol and port by which a packet is looked up among a pod's named ports.
// It is 0 for protocols without ports.
func namedKey(proto packet.Proto, port uint16) uint64 {
	switch {
	case proto.HasPorts():
		return 1<<32 | uint64(proto)<<16 | uint64(port)
	case proto.Hidden():
		return hiddenKey
	}
	return 0
}

// entry is the result for a key and an identity, or a marker that its evaluation is deferred.
type entry struct {
	key
	identity string
	hash     uint64
	handle   *handle
	rules    set
	bytes    int64
	deferred bool
	used     atomic.Bool // set by find, cleared when the clock hand passes
}

// handle points to an entry, and to nil once it is evicted. Versions keep handles rather than
// entries so that evicted entries can be freed.
type handle = atomic.Pointer[entry]

// NewMemory returns a Memory that stays within a number of bytes.
func NewMemory(budget int64) *Memory {
	seed := maphash.MakeSeed()
	return &Memory{
		budget:   budget,
		seed:     seed,
		secret:   maphash.Comparable(seed, budget),
		deferred: make(chan *Evaluation, maxDeferred),
	}
}

// Used returns how many bytes the entries occupy.
func (m *Memory) Used() int64 { return m.used.Load() }

// Evicted returns how many entries were evicted to stay within the budget.
func (m *Memory) Evicted() uint64 { return m.evicted.Load() }

// Deferred delivers the evaluations that are too slow for the packet path. The caller must run
// them; packets that need them stay undecided until then.
func (m *Memory) Deferred() <-chan *Evaluation { return m.deferred }

// Evaluation is a deferred evaluation.
type Evaluation struct {
	memory *Memory
	index  *index
	key    key
	peer   peer
}

// Run evaluates and stores the result.
func (e *Evaluation) Run() {
	e.memory.put(e.index, e.key, e.peer, e.index.evaluate(e.peer, e.key.port), false)
}

// recall returns the rules of x that p matches, from memory if possible. It returns false if the
// evaluation is deferred.
func (f *flow) recall(x *index, k key, p peer) (set, bool) {
	if f.memory == nil || p.pod != nil && p.pod.Version == nil {
		return x.evaluate(p, k.port), true
	}
	e := f.memory.find(x, k, p)
	switch {
	case e != nil && !e.deferred:
		return e.rules, true
	case f.mayDefer && e != nil:
		return nil, false
	case f.mayDefer && x.cost(p, k.port, inlineCost) > inlineCost:
		f.memory.deferEvaluation(&Evaluation{f.memory, x, k, p})
		return nil, false
	}
	rules := x.evaluate(p, k.port)
	f.memory.put(x, k, p, rules, false)
	return rules, true
}

// deferEvaluation queues e. If the queue is full it drops e: the packet comes back and is evaluated
// again.
func (m *Memory) deferEvaluation(e *Evaluation) {
	marker := m.put(e.index, e.key, e.peer, nil, true) // before Run can replace it
	select {
	case m.deferred <- e:
	default:
		m.forget(marker)
	}
}

// forget removes e unless another entry has replaced it.
func (m *Memory) forget(e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.table.Load()
	if t == nil {
		return
	}
	b := t.bucket(e.hash)
	for i := range b {
		if b[i].Load() == e {
			m.replace(&b[i], nil)
		}
	}
}

// find returns the entry of k for p, nil if there is none.
func (m *Memory) find(x *index, k key, p peer) *entry {
	e := k.latest(p)
	if e == nil {
		if e = m.findIdentity(x, k, p); e == nil {
			return nil
		}
	}
	if !e.used.Load() {
		e.used.Store(true)
	}
	return e
}

// findIdentity is find without the cached latest entry.
func (m *Memory) findIdentity(x *index, k key, p peer) *entry {
	t := m.table.Load()
	if t == nil {
		return nil
	}
	var room [identityBytes]byte
	k, identity := k.identify(x, p, room[:0])
	hash := m.hash(k, identity)
	b := t.bucket(hash)
	for i := range b {
		if e := b[i].Load(); e != nil && e.hash == hash && e.key == k && e.identity == string(identity) {
			e.note(p)
			return e
		}
	}
	return nil
}

// hash is keyed so that authors of pods and policies cannot make their entries collide.
func (m *Memory) hash(k key, identity []byte) uint64 {
	h := mix(mix(m.secret^k.index)^k.port) ^ maphash.Bytes(m.seed, identity)
	if k.pod != nil || k.node != nil || k.names != nil {
		h ^= maphash.Comparable(m.seed, k)
	}
	return h
}

func (t table) bucket(hash uint64) *bucket { return &t[hash&uint64(len(t)-1)] }

// put stores an entry, replacing the one with the same key and identity.
func (m *Memory) put(x *index, k key, p peer, rules set, deferred bool) *entry {
	var room [identityBytes]byte
	k, identity := k.identify(x, p, room[:0])
	e := &entry{key: k, identity: string(identity), hash: m.hash(k, identity), handle: new(handle), rules: rules, deferred: deferred}
	e.handle.Store(e)
	e.bytes = int64(entryBytes + len(e.identity) + rules.bytes() + k.bytes())
	e.used.Store(true)
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.bytes > m.budget {
		return e
	}
	m.replace(m.slotFor(e), e)
	e.note(p)
	for m.used.Load() > m.budget {
		m.evict(e)
	}
	return e
}

// replace puts e, which may be nil, into a slot.
func (m *Memory) replace(slot *atomic.Pointer[entry], e *entry) {
	old := slot.Swap(e)
	if old != nil {
		m.used.Add(-old.bytes)
		old.handle.Store(nil)
	}
	if e != nil {
		m.used.Add(e.bytes)
	}
}

// slotFor returns the slot for e: the one with its key and identity, an empty one, or one whose
// entry was not used lately.
func (m *Memory) slotFor(e *entry) *atomic.Pointer[entry] {
	for {
		t := m.table.Load()
		if t == nil {
			m.grow(nil)
			continue
		}
		b := t.bucket(e.hash)
		var empty *atomic.Pointer[entry]
		for i := range b {
			switch old := b[i].Load(); {
			case old == nil:
				empty = &b[i]
			case old.key == e.key && old.identity == e.identity:
				return &b[i]
			}
		}
		if empty != nil {
			return empty
		}
		if int64(len(*t))*bucketEntries*entryBytes >= m.budget {
			m.evicted.Add(1)
			return b.unused()
		}
		m.grow(*t)
	}
}

// unused returns the slot of an entry that was not used since the last look.
func (b *bucket) unused() *atomic.Pointer[entry] {
	for i := range b {
		if !b[i].Load().used.Swap(false) {
			return &b[i]
		}
	}
	return &b[0]
}

// grow doubles the table.
func (m *Memory) grow(old table) {
	t := make(table, max(minBuckets, 2*len(old)))
	for i := range old {
		for j := range old[i] {
			e := old[i][j].Load()
			if e == nil {
				continue
			}
			b := t.bucket(e.hash)
			for n := range b {
				if b[n].Load() == nil {
					b[n].Store(e)
					break
				}
			}
		}
	}
	m.table.Store(&t)
}

// evict removes the entries of the next bucket that were not used since the last look, except keep.
func (m *Memory) evict(keep *entry) {
	t := *m.table.Load()
	m.hand = (m.hand + 1) & (len(t) - 1)
	b := &t[m.hand]
	for i := range b {
		if e := b[i].Load(); e != nil && e != keep && !e.used.Swap(false) {
			m.replace(&b[i], nil)
			m.evicted.Add(1)
		}
	}
}

// bytes is the memory that only k keeps alive.
func (k *key) bytes() int {
	n := 0
	if k.names != nil {
		for _, name := range *k.names {
			n += 16 + len(name)
		}
	}
	return n
}
