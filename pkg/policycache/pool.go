package policycache

import (
	"hash/maphash"
	"sync"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// poolSize is how many values a pool remembers, twice. The pods of a busy
// cluster of 100,000 have some thousands of label sets.
const poolSize = 1 << 14

// pool remembers values to share them between equal objects: the pods of one
// ReplicaSet have the same labels and ports. Values that were not asked for in
// a while are forgotten, which costs nothing but the sharing. It may be used
// from any goroutine.
type pool[V any] struct {
	equal func(a, b V) bool

	mu       sync.Mutex
	now, old map[uint64]V // by hash; of two values with one hash the later is kept
}

type (
	labelPool = pool[map[string]string]
	portPool  = pool[[]policy.NamedPort]
)

func newPool[V any](equal func(a, b V) bool) *pool[V] {
	return &pool[V]{equal: equal, now: map[uint64]V{}}
}

// share returns the value that equals v and was given first.
func (p *pool[V]) share(hash uint64, v V) V {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.now[hash]
	if ok && p.equal(known, v) {
		return known
	}
	if known, ok = p.old[hash]; ok && p.equal(known, v) {
		v = known
	}
	if len(p.now) >= poolSize {
		p.old, p.now = p.now, map[uint64]V{}
	}
	p.now[hash] = v
	return v
}

var seed = maphash.MakeSeed()

// hashLabels does not depend on the order of a map.
func hashLabels(labels map[string]string) uint64 {
	var sum uint64
	for k, v := range labels {
		sum += maphash.Comparable(seed, [2]string{k, v})
	}
	return sum
}

func hashPorts(ports []policy.NamedPort) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, p := range ports {
		maphash.WriteComparable(&h, p)
	}
	return h.Sum64()
}
