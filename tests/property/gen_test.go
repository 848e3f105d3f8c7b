package property

import (
	"hash/fnv"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/oracle"
)

// gen makes random choices and builds clusters out of them. Its alphabets are
// tiny, so that names, labels, ports and addresses collide all the time.
type gen struct {
	*rand.Rand
	// faults lets what is being built contain things that the API would refuse.
	faults bool
	// rules is the most that a policy has in one direction.
	rules int
}

// The evaluator treats many rules otherwise than few.
const fewRules, manyRules = 3, 16

func newGen(seed uint64) *gen {
	return &gen{Rand: rand.New(rand.NewPCG(seed, 0)), rules: fewRules}
}

// newGenFromBytes makes its choices from data as long as it lasts, one byte a
// choice, so that a fuzzer can change one of them.
func newGenFromBytes(data []byte) *gen {
	h := fnv.New64a()
	h.Write(data)
	return &gen{Rand: rand.New(&byteSource{data, rand.NewPCG(h.Sum64(), 0)}), rules: fewRules}
}

type byteSource struct {
	data []byte
	rest rand.Source
}

// Uint64 spreads a byte over the whole word: rand takes small numbers from the
// high bits.
func (s *byteSource) Uint64() uint64 {
	if len(s.data) == 0 {
		return s.rest.Uint64()
	}
	b := s.data[0]
	s.data = s.data[1:]
	return uint64(b) * 0x0101010101010101
}

// oneIn is true once in n times.
func (g *gen) oneIn(n int) bool { return g.IntN(n) == 0 }

// fault is true once in n times, and never where faults are not wanted.
func (g *gen) fault(n int) bool { return g.faults && g.oneIn(n) }

// pick returns one of its arguments, which it prefers by repetition.
func pick[T any](g *gen, from ...T) T { return from[g.IntN(len(from))] }

// list returns up to n things.
func list[T any](g *gen, n int, one func() T) []T {
	var l []T
	for range g.IntN(n + 1) {
		l = append(l, one())
	}
	return l
}

// namespaceNames are where pods and policies live.
var namespaceNames = []string{"n1", "n2", "n3", "n4"}

func (g *gen) cluster() oracle.Cluster {
	c := oracle.Cluster{EndPort: !g.oneIn(5), SCTP: !g.oneIn(5), NodePeers: !g.oneIn(6), DomainNames: !g.oneIn(6)}
	g.rules = fewRules
	if g.oneIn(6) {
		g.rules = manyRules
	}
	inUse := namespaceNames[:1+g.IntN(len(namespaceNames))]
	for _, name := range inUse {
		if !g.oneIn(4) {
			c.Namespaces = append(c.Namespaces, g.namespace(name))
		}
	}
	c.Nodes = g.nodes()
	c.Pods = g.pods(inUse)
	c.NetworkPolicies = g.policies(inUse)
	if !g.oneIn(3) {
		g.administrators(&c)
	}
	return c
}

func (g *gen) namespace(name string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: g.labels()}}
	if g.oneIn(2) {
		ns.Labels[corev1.LabelMetadataName] = name
	}
	if g.oneIn(6) {
		ns.Labels = nil
	}
	return ns
}

// labels of an object. The value with an exclamation mark is none, but the
// oldest objects of a cluster may have such.
func (g *gen) labels() map[string]string {
	labels := map[string]string{}
	for _, key := range []string{"a", "b"} {
		if !g.oneIn(3) {
			labels[key] = pick(g, "x", "x", "v", "v", "", "x!")
		}
	}
	return labels
}

func (g *gen) selector() metav1.LabelSelector {
	if g.oneIn(3) {
		return metav1.LabelSelector{}
	}
	var s metav1.LabelSelector
	if g.oneIn(2) {
		s.MatchLabels = map[string]string{pick(g, "a", "b"): pick(g, "x", "v", "")}
	}
	if g.fault(16) {
		s.MatchLabels = map[string]string{pick(g, "a", "a b"): pick(g, "x!", "x")}
	}
	if g.oneIn(8) {
		s.MatchLabels = map[string]string{corev1.LabelMetadataName: pick(g, namespaceNames...)}
	}
	s.MatchExpressions = list(g, 2, g.requirement)
	return s
}

func (g *gen) requirement() metav1.LabelSelectorRequirement {
	r := metav1.LabelSelectorRequirement{
		Key: pick(g, "a", "b", "b", "c"),
		Operator: pick(g, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn,
			metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist),
	}
	if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
		r.Values = append(list(g, 1, func() string { return pick(g, "x", "v", "") }), pick(g, "x", "v"))
	}
	if g.fault(16) {
		r.Values = pick(g, nil, []string{"x!"}, []string{"x", "x!"}, []string{"x"})
	}
	if g.fault(16) {
		r.Operator = pick[metav1.LabelSelectorOperator](g, "Gt", "", "in")
	}
	if g.fault(24) {
		r.Key = pick(g, "", "a b", "-a")
	}
	return r
}
