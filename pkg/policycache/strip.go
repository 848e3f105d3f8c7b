package policycache

import (
	"maps"
	"net/netip"
	"unique"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// The strip functions return a new object with what policy needs of theirs and
// leave the one they are given alone. What two objects have in common is shared
// between them, so nothing in a stripped object may be written to.

// stripNamespace keeps the labels.
func stripNamespace(labels *labelPool) func(*corev1.Namespace) any {
	return func(ns *corev1.Namespace) any {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name:   ns.Name,
			Labels: shareLabels(labels, ns.Labels),
		}}
	}
}

// stripNode keeps the ranges of pod addresses.
func stripNode(n *corev1.Node) any { return withRanges(n) }

func withRanges(n *corev1.Node) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name},
		Spec:       corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
	}
}

// stripPeerNode keeps what makes a node a peer, too: its labels, and those of
// its addresses that are no names.
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

// The policies keep their whole spec.

func stripNetworkPolicy(p *networkingv1.NetworkPolicy) any {
	return &networkingv1.NetworkPolicy{ObjectMeta: policyMeta(p.ObjectMeta), Spec: p.Spec}
}

func stripAdminNetworkPolicy(p *v1alpha1.AdminNetworkPolicy) any {
	return &v1alpha1.AdminNetworkPolicy{ObjectMeta: policyMeta(p.ObjectMeta), Spec: p.Spec}
}

func stripBaselineAdminNetworkPolicy(p *v1alpha1.BaselineAdminNetworkPolicy) any {
	return &v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: policyMeta(p.ObjectMeta), Spec: p.Spec}
}

func stripClusterNetworkPolicy(p *v1alpha2.ClusterNetworkPolicy) any {
	return &v1alpha2.ClusterNetworkPolicy{ObjectMeta: policyMeta(p.ObjectMeta), Spec: p.Spec}
}

// policyMeta keeps the generation that tells a reader of findings which one it
// was.
func policyMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:       m.Name,
		Namespace:  m.Namespace,
		Generation: m.Generation,
	}
}

// stripPod keeps what a Cluster needs of a pod. Pods that are replicas of one
// another have their labels and ports in common, and all pods of a namespace or
// a node its name.
func stripPod(labels *labelPool, ports *portPool) func(*corev1.Pod) any {
	return func(p *corev1.Pod) any {
		pod := compile.NewPod(p)
		e := &pod.Endpoint
		e.Namespace = unique.Make(e.Namespace).Value()
		pod.Node = unique.Make(pod.Node).Value()
		e.Labels = shareLabels(labels, e.Labels)
		e.Ports = ports.share(hashPorts(e.Ports), e.Ports)
		return pod
	}
}

// shareLabels knows one way only to have no labels.
func shareLabels(pool *labelPool, labels map[string]string) map[string]string {
	if len(labels) == 0 {
		return nil
	}
	return pool.share(hashLabels(labels), labels)
}

func equalLabels(a, b map[string]string) bool { return maps.Equal(a, b) }
