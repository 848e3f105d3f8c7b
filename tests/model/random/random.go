// Package random generates random API objects for properties that hold for every cluster. Its
// alphabets are tiny, so that names, labels, ports and addresses often collide. It leaves the
// addresses of pods and nodes to the tests.
package random

import (
	"encoding/json"
	"hash/fnv"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Gen makes random choices and builds objects from them. Equal sources of random numbers
// give equal objects.
type Gen struct {
	*rand.Rand
	// Namespaces are the names of namespaces in selectors.
	Namespaces []string
	// CIDRs are the candidates for ipBlocks and networks.
	CIDRs []string
	// Rules is the maximum number of rules in one direction.
	Rules int
	// faults permits values that the API would refuse.
	faults bool
}

// OneIn is true once in n times on average.
func (g *Gen) OneIn(n int) bool { return g.IntN(n) == 0 }

// fault is true once in n times, but never if faults are not permitted.
func (g *Gen) fault(n int) bool { return g.faults && g.OneIn(n) }

// Source chooses a number below n.
type Source interface{ IntN(n int) int }

// Pick returns one of its arguments. Repeating an argument makes it more likely.
func Pick[T any](g Source, from ...T) T { return from[g.IntN(len(from))] }

// List returns up to n elements.
func List[T any](g Source, n int, one func() T) []T {
	var l []T
	for range g.IntN(n + 1) {
		l = append(l, one())
	}
	return l
}

// Namespace returns a namespace with labels.
func (g *Gen) Namespace(name string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: g.Labels()}}
	if g.OneIn(2) {
		ns.Labels[corev1.LabelMetadataName] = name
	}
	if g.OneIn(6) {
		ns.Labels = nil
	}
	return ns
}

// Pod returns a running pod without addresses on node "n1" or "n2". One in six uses the
// network of its node. It declares up to three ports, which may share a name.
func (g *Gen) Pod(namespace, name string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: g.Labels()},
		Spec: corev1.PodSpec{
			NodeName: Pick(g, "n1", "n2"), HostNetwork: g.OneIn(6),
			Containers: []corev1.Container{{Ports: List(g, 3, func() corev1.ContainerPort {
				return corev1.ContainerPort{
					Name: Pick(g, "web", "web", "dns", ""), ContainerPort: Pick[int32](g, 80, 81, 53, 8080),
					Protocol: Pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP),
				}
			})}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	pod.Spec.ServiceAccountName = g.ServiceAccountOf(pod)
	return pod
}

// ServiceAccountOf returns a service account for a pod, or none, as in a manifest.
func (g *Gen) ServiceAccountOf(pod *corev1.Pod) string {
	return Pick(g.derived(pod), "", "default", "s", "s", "t.u")
}

// derived returns a Gen whose choices depend on o alone. They take nothing from the source of g, so
// that past seeds still give the clusters for which they are kept.
func (g *Gen) derived(o any) *Gen {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	hash := fnv.New64a()
	hash.Write(text)
	d := *g
	d.Rand = rand.New(rand.NewPCG(hash.Sum64(), 0))
	return &d
}

// Labels returns the labels of an object. The value with an exclamation mark is invalid, but old
// objects may have it.
func (g *Gen) Labels() map[string]string {
	labels := map[string]string{}
	for _, key := range []string{"a", "b"} {
		if !g.OneIn(3) {
			labels[key] = Pick(g, "x", "x", "v", "v", "", "x!")
		}
	}
	return labels
}

// Selector returns a selector for the labels of Labels.
func (g *Gen) Selector() metav1.LabelSelector {
	if g.OneIn(3) {
		return metav1.LabelSelector{}
	}
	var s metav1.LabelSelector
	if g.OneIn(2) {
		s.MatchLabels = map[string]string{Pick(g, "a", "b"): Pick(g, "x", "v", "")}
	}
	if g.fault(16) {
		s.MatchLabels = map[string]string{Pick(g, "a", "a b"): Pick(g, "x!", "x")}
	}
	if g.OneIn(8) {
		s.MatchLabels = map[string]string{corev1.LabelMetadataName: Pick(g, g.Namespaces...)}
	}
	s.MatchExpressions = List(g, 2, g.requirement)
	return s
}

func (g *Gen) requirement() metav1.LabelSelectorRequirement {
	r := metav1.LabelSelectorRequirement{
		Key: Pick(g, "a", "b", "b", "c"),
		Operator: Pick(g, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn,
			metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist),
	}
	if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
		r.Values = append(List(g, 1, func() string { return Pick(g, "x", "v", "") }), Pick(g, "x", "v"))
	}
	if g.fault(16) {
		r.Values = Pick(g, nil, []string{"x!"}, []string{"x", "x!"}, []string{"x"})
	}
	if g.fault(16) {
		r.Operator = Pick[metav1.LabelSelectorOperator](g, "Gt", "", "in")
	}
	if g.fault(24) {
		r.Key = Pick(g, "", "a b", "-a")
	}
	return r
}

// Enforcement may annotate o so that it or its policies are audited. Some annotations are misspelt,
// have a former name, or belong to a different domain.
func (g *Gen) Enforcement(o metav1.Object) {
	value := func() string { return Pick(g, "audit", "audit", "enforce", "Audit", "dry-run") }
	const key, former, other = "kube-network-policies.x-k8s.io/enforcement", "kube-network-policies.sigs.k8s.io/enforcement", "example.com/enforcement"
	switch g.IntN(14) {
	case 0, 1, 2, 3:
	case 4:
		o.SetAnnotations(map[string]string{former: value()})
	case 5:
		o.SetAnnotations(map[string]string{key: value(), former: value()})
	case 6:
		o.SetAnnotations(map[string]string{other: value()})
	default:
		o.SetAnnotations(map[string]string{key: value()})
	}
}
