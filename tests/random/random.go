// Package random makes random API objects for properties that hold for every cluster.
// Its alphabets are tiny, so that names, labels, ports and addresses collide all the
// time. Tests choose the addresses of pods and nodes themselves.
package random

import (
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Gen makes random choices and builds objects out of them. Equal sources of random
// numbers give equal objects.
type Gen struct {
	*rand.Rand
	// Namespaces are the names that selectors know namespaces by.
	Namespaces []string
	// CIDRs are what peers are chosen from.
	CIDRs []string
	// Rules is the most that a policy has in one direction.
	Rules int
	// faults lets what is being built contain things that the API would refuse.
	faults bool
}

// OneIn is true once in n times.
func (g *Gen) OneIn(n int) bool { return g.IntN(n) == 0 }

// fault is true once in n times, and never where faults are not wanted.
func (g *Gen) fault(n int) bool { return g.faults && g.OneIn(n) }

// Source chooses a number below n.
type Source interface{ IntN(n int) int }

// Pick returns one of its arguments, which it prefers by repetition.
func Pick[T any](g Source, from ...T) T { return from[g.IntN(len(from))] }

// List returns up to n things.
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

// Pod returns a running pod without addresses on one of the nodes "n1" and "n2". One in six
// uses the network of its node. Up to three ports are declared, which may have one name.
func (g *Gen) Pod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
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
}

// Labels are those of an object. The value with an exclamation mark is none, but the
// oldest objects of a cluster may have such.
func (g *Gen) Labels() map[string]string {
	labels := map[string]string{}
	for _, key := range []string{"a", "b"} {
		if !g.OneIn(3) {
			labels[key] = Pick(g, "x", "x", "v", "v", "", "x!")
		}
	}
	return labels
}

// Selector selects by the labels of Labels.
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

// Enforcement annotates o, or not, so that it or its policies may be audited. Some values
// are misspelt.
func (g *Gen) Enforcement(o metav1.Object) {
	if value := Pick(g, "", "", "audit", "audit", "enforce", "Audit", "dry-run"); value != "" {
		o.SetAnnotations(map[string]string{"kube-network-policies.sigs.k8s.io/enforcement": value})
	}
}
