package clusterwatch

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/podwatch"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// stripFunc returns a new object in the form that the Cluster stores, with the fields that
// policy needs. It does not modify o, but the two may share memory, so neither may be written
// to. It returns false for an object of another kind.
type stripFunc func(o metav1.Object) (stripped any, ok bool)

// stripTyped returns the stripFunc for objects of one type.
func stripTyped[O metav1.Object](strip func(O) any) stripFunc {
	return func(o metav1.Object) (any, bool) {
		typed, ok := o.(O)
		if !ok {
			return nil, false
		}
		return strip(typed), true
	}
}

// stripPod returns the function for pods, which may be stripped already.
func stripPod(shared *podwatch.Shared) stripFunc {
	return func(o metav1.Object) (any, bool) {
		switch o := o.(type) {
		case *podwatch.Object:
			return o.Pod, true
		case *corev1.Pod:
			return shared.Strip(o), true
		}
		return nil, false
	}
}

// stripNamespace keeps the labels and the annotations that policy needs.
func stripNamespace(ns *corev1.Namespace) any {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns.Name, Labels: ns.Labels, Annotations: compile.StripAnnotations(ns.Annotations)}}
}

// stripNode keeps the ranges of pod addresses.
func stripNode(n *corev1.Node) any { return withRanges(n) }

func withRanges(n *corev1.Node) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name},
		Spec:       corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
	}
}

// stripPeerNode also keeps what makes a node a peer: its labels and IP addresses.
func stripPeerNode(n *corev1.Node) any {
	stripped := withRanges(n)
	stripped.Labels = n.Labels
	for _, a := range n.Status.Addresses {
		if _, err := netip.ParseAddr(a.Address); err == nil {
			stripped.Status.Addresses = append(stripped.Status.Addresses, a)
		}
	}
	return stripped
}

// stripCIDRGroup keeps the labels and the networks.
func stripCIDRGroup(g *proposed.CIDRGroup) any {
	return &proposed.CIDRGroup{ObjectMeta: metav1.ObjectMeta{Name: g.Name, Labels: g.Labels}, Spec: g.Spec}
}

// stripPolicy returns the function for a kind of policy. It keeps the whole spec and the
// annotations that policy needs.
func stripPolicy(k *compile.Kind) stripFunc {
	return func(o metav1.Object) (any, bool) {
		if !k.Has(o) {
			return nil, false
		}
		return k.Strip(o.(compile.Object)), true
	}
}
