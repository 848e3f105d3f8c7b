package policy

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// DefaultMemory is the budget of a Memory in bytes.
const DefaultMemory = 64 << 20

const (
	// inlineCost is how many comparisons may be made while a packet waits. More
	// are deferred. A comparison takes some 30 ns.
	inlineCost = 64
	// maxDeferred bounds the evaluations that wait to be made.
	maxDeferred = 1024
	// bucketEntries is the number of places that an entry can be in.
	bucketEntries = 8
	minBuckets    = 8
	// entryBytes is what an entry occupies in addition to its set and what it refers to:
	// itself, places of the table, and the allocator's losses.
	entryBytes = 192
)

// Memory remembers which rules select a peer, for all chains of a cluster. What it
// holds follows from chains and peers, which never change, so that neither
// remembering nor forgetting can be observed in a verdict. It stays within a budget
// of bytes and forgets about what was least recently used. Its methods may be called from
// any goroutine.
type Memory struct {
	budget   int64
	seed     maphash.Seed
	secret   uint64
	table    atomic.Pointer[table]
	deferred chan *Evaluation

	used    atomic.Int64
	evicted atomic.Uint64

	mu   sync.Mutex // of writers to the table
	hand int        // the bucket where the next entry to forget is looked for
}

// table is a hash table of a power of two buckets. It is read without a lock.
type table []bucket

type bucket [bucketEntries]atomic.Pointer[entry]

// key is what is evaluated, of a pod together with its identity: the result never
// changes. It keeps no pod and no chain from being freed.
type key struct {
	index uint64
	port  uint64   // namedKey, for named ports that the pod declares; else 0
	pod   *Version // of a pod that has no identity
	node  *Host
	names *Names
	scope scope
}

// hiddenKey is namedKey of packets whose ports are hidden.
const hiddenKey = 2 << 32

// namedKey identifies the named ports of a pod that a packet may be for. It is 0 for
// protocols without ports.
func namedKey(proto packet.Proto, port uint16) uint64 {
	switch {
	case proto.HasPorts():
		return 1<<32 | uint64(proto)<<16 | uint64(port)
	case proto.Hidden():
		return hiddenKey
	}
	return 0
}

// entry is the result of a key for the pods of an identity, or notes that it is deferred.
type entry struct {
	key
	identity string // of the pods
	hash     uint64
	handle   *handle
	rules    set
	bytes    int64
	deferred bool
	used     atomic.Bool // since the hand came by
}

// handle has an entry, nil once it is forgotten. Versions keep handles, not entries, so
// that these can be freed.
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

// Used returns how many bytes are remembered.
func (m *Memory) Used() int64 { return m.used.Load() }

// Evicted returns how many answers were forgotten to stay within the budget.
func (m *Memory) Evicted() uint64 { return m.evicted.Load() }

// Deferred gives the evaluations that are too much work for the path of a packet.
// The caller must run them: until then the packets that need them are not decided.
func (m *Memory) Deferred() <-chan *Evaluation { return m.deferred }

// Evaluation is work that was deferred.
type Evaluation struct {
	memory *Memory
	index  *index
	key    key
	peer   peer
}

// Run does the work.
func (e *Evaluation) Run() {
	e.memory.put(e.index, e.key, e.peer, e.index.evaluate(e.peer, e.key.port), false)
}

// recall returns the rules of x that p matches. It reports false if that is deferred.
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

// deferEvaluation does nothing if too many are pending. The packet is evaluated again.
func (m *Memory) deferEvaluation(e *Evaluation) {
	noted := m.put(e.index, e.key, e.peer, nil, true) // before the evaluation replaces it
	select {
	case m.deferred <- e:
	default:
		m.forget(noted)
	}
}

// forget forgets e, unless another entry has replaced it.
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

// findIdentity is find for pods of which nothing is noted.
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

// hash spreads keys over the buckets. Authors of pods and policies cannot predict
// where theirs are.
func (m *Memory) hash(k key, identity []byte) uint64 {
	h := mix(mix(m.secret^k.index)^k.port) ^ maphash.Bytes(m.seed, identity)
	if k.pod != nil || k.node != nil || k.names != nil {
		h ^= maphash.Comparable(m.seed, k)
	}
	return h
}

func (t table) bucket(hash uint64) *bucket { return &t[hash&uint64(len(t)-1)] }

// put remembers an entry in the place of the one of its key and identity.
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
	m.replace(m.room(e), e)
	e.note(p)
	for m.used.Load() > m.budget {
		m.evict(e)
	}
	return e
}

// replace puts e, nil for none, in a place.
func (m *Memory) replace(place *atomic.Pointer[entry], e *entry) {
	old := place.Swap(e)
	if old != nil {
		m.used.Add(-old.bytes)
		old.handle.Store(nil)
	}
	if e != nil {
		m.used.Add(e.bytes)
	}
}

// room returns the place for e: that of its key and identity, an empty one, or that of an
// entry that was not used lately.
func (m *Memory) room(e *entry) *atomic.Pointer[entry] {
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

// unused returns the place of an entry that was not used since it was looked at
// last.
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

// evict forgets entries of one bucket that were not used since it was looked at
// last, and not keep.
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

// bytes is what k keeps from being freed.
func (k *key) bytes() int {
	n := 0
	if k.names != nil {
		for _, name := range *k.names {
			n += 16 + len(name)
		}
	}
	return n
}
