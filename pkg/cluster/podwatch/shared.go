package podwatch

import (
	"hash/maphash"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Shared holds values that pods have in common: replicas have the same labels and ports, and
// all pods of a namespace or a node share its name. It may be used from any goroutine.
type Shared struct {
	names  *pool[string]
	labels *pool[policy.Labels]
	ports  *pool[[]policy.NamedPort]
}

// NewShared returns a Shared that holds nothing.
func NewShared() *Shared {
	return &Shared{newPool[string](), newPool[policy.Labels](), newPool[[]policy.NamedPort]()}
}

// Strip returns the fields of p that policy needs, and does not modify p. The result must not
// be modified.
func (s *Shared) Strip(p *corev1.Pod) *compile.Pod {
	pod := compile.NewPod(p)
	pod.Endpoint.Labels = s.sameLabels(pod.Endpoint.Labels)
	pod.Endpoint.Ports = s.samePorts(pod.Endpoint.Ports)
	return pod
}

// Share replaces values of p by equal ones of other pods.
func (s *Shared) Share(p *compile.Pod) {
	p.Endpoint.Namespace, p.Node = s.name([]byte(p.Endpoint.Namespace)), s.name([]byte(p.Node))
	p.Endpoint.Account = s.name([]byte(p.Endpoint.Account))
	p.Endpoint.Labels = s.sameLabels(p.Endpoint.Labels)
	p.Endpoint.Ports = s.samePorts(p.Endpoint.Ports)
}

var seed = maphash.MakeSeed()

// name returns b as a string.
func (s *Shared) name(b []byte) string {
	return s.names.get(maphash.Bytes(seed, b),
		func(known string) bool { return known == string(b) },
		func() string { return string(b) })
}

// sameLabels returns earlier labels that equal these.
func (s *Shared) sameLabels(labels policy.Labels) policy.Labels {
	return s.labels.get(labels.Hash(seed), labels.Equal, func() policy.Labels { return labels })
}

func (s *Shared) samePorts(ports []policy.NamedPort) []policy.NamedPort {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, p := range ports {
		maphash.WriteComparable(&h, p)
	}
	return s.ports.get(h.Sum64(),
		func(known []policy.NamedPort) bool { return slices.Equal(known, ports) },
		func() []policy.NamedPort { return ports })
}

// poolSize is the size of each half of a pool. The 100,000 pods of a busy cluster have some
// thousands of label sets.
const poolSize = 1 << 14

// pool remembers values. Values that were not requested for a while are forgotten and no
// longer shared.
type pool[V any] struct {
	mu       sync.Mutex
	now, old map[uint64]V // by hash; a later value with the same hash replaces an earlier one
}

func newPool[V any]() *pool[V] { return &pool[V]{now: map[uint64]V{}} }

// get returns the remembered value that equals the wanted one, and remembers the
// wanted one if there is none.
func (p *pool[V]) get(hash uint64, equal func(known V) bool, wanted func() V) V {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.now[hash]
	if ok && equal(v) {
		return v
	}
	if v, ok = p.old[hash]; !ok || !equal(v) {
		v = wanted()
	}
	if len(p.now) >= poolSize {
		p.old, p.now = p.now, map[uint64]V{}
	}
	p.now[hash] = v
	return v
}
