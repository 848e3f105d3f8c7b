package reachability

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// gen makes random clusters of few names, labels, ports and addresses, so that
// they meet all the time.
type gen struct{ *rand.Rand }

func (g gen) oneIn(n int) bool { return g.IntN(n) == 0 }

func pick[T any](g gen, from ...T) T { return from[g.IntN(len(from))] }

func upTo[T any](g gen, n int, one func() T) []T {
	var list []T
	for range g.IntN(n + 1) {
		list = append(list, one())
	}
	return list
}

// forClusters calls do with many random clusters.
func forClusters(t *testing.T, n int, do func(t *testing.T, g gen, in clusterstate.Input)) {
	t.Helper()
	for seed := range uint64(n) {
		g := gen{rand.New(rand.NewPCG(seed, 0))}
		do(t, g, g.cluster())
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func (g gen) cluster() clusterstate.Input {
	in := clusterstate.Input{Features: compile.Features{EndPort: !g.oneIn(5), SCTP: !g.oneIn(5), Nodes: !g.oneIn(5), DomainNames: !g.oneIn(5)}}
	for i, node := range []string{"n1", "n2"} {
		in.Nodes = append(in.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node, Labels: g.labels()},
			Spec:       corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.%d.0.0/24", i+1), fmt.Sprintf("fd00:%d::/64", i+1)}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.168.0.%d", i+1)}, {Type: corev1.NodeHostName, Address: node},
				{Type: corev1.NodeExternalIP, Address: fmt.Sprintf("203.0.113.%d", i+1)},
			}},
		})
	}
	for _, ns := range []string{"x", "y"} {
		if !g.oneIn(5) {
			in.Namespaces = append(in.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: g.labels()}})
		}
		for i := range 1 + g.IntN(4) {
			in.Pods = append(in.Pods, g.pod(ns, i))
		}
	}
	for i := range g.IntN(6) {
		in.Policies = append(in.Policies, g.policy(pick(g, "x", "y"), fmt.Sprintf("np%d", i)))
	}
	g.addAdminPolicies(&in)
	return in
}

func (g gen) labels() map[string]string {
	labels := map[string]string{}
	for _, key := range []string{"a", "b"} {
		if !g.oneIn(3) {
			labels[key] = pick(g, "v", "w")
		}
	}
	return labels
}

func (g gen) pod(ns string, i int) *corev1.Pod {
	node := 1 + g.IntN(2)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("p%d", i), Labels: g.labels()},
		Spec:       corev1.PodSpec{NodeName: fmt.Sprintf("n%d", node), HostNetwork: g.oneIn(6)},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	host := i + 2
	if ns == "y" {
		host += 16
	}
	ip4, ip6 := fmt.Sprintf("10.%d.0.%d", node, host), fmt.Sprintf("fd00:%d::%d", node, host)
	if pod.Spec.HostNetwork {
		ip4, ip6 = fmt.Sprintf("192.168.0.%d", node), fmt.Sprintf("fd00:f::%d", node)
	}
	for _, ip := range pick(g, []string{ip4}, []string{ip4}, []string{ip6}, []string{ip4, ip6}) {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	pod.Spec.Containers = []corev1.Container{{Ports: upTo(g, 3, func() corev1.ContainerPort {
		return corev1.ContainerPort{
			Name: pick(g, "web", "web", "dns", ""), ContainerPort: pick[int32](g, 80, 81, 53, 8080),
			Protocol: pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP),
		}
	})}}
	return pod
}

func (g gen) selector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if g.oneIn(2) {
		s.MatchLabels = map[string]string{pick(g, "a", "b"): pick(g, "v", "w")}
	}
	if g.oneIn(20) {
		s.MatchLabels = map[string]string{"a": "not a value"}
	}
	return s
}

func (g gen) policy(ns, name string) *networkingv1.NetworkPolicy {
	in, out := networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	p.Spec.PodSelector = *g.selector()
	p.Spec.PolicyTypes = pick(g, []networkingv1.PolicyType{in}, []networkingv1.PolicyType{out}, []networkingv1.PolicyType{in, out}, nil)
	p.Spec.Ingress = upTo(g, 3, func() networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: upTo(g, 2, g.peer), Ports: upTo(g, 2, g.port)}
	})
	p.Spec.Egress = upTo(g, 3, func() networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{To: upTo(g, 2, g.peer), Ports: upTo(g, 2, g.port)}
	})
	return p
}

func (g gen) peer() networkingv1.NetworkPolicyPeer {
	switch g.IntN(8) {
	case 0:
		return networkingv1.NetworkPolicyPeer{} // nothing that is known
	case 1, 2, 3:
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{
			CIDR:   pick(g, "0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/28", "192.168.0.0/24", "203.0.113.0/25", "::/0", "fd00:1::/64", "2001:db8::/32", "bad"),
			Except: upTo(g, 1, func() string { return pick(g, "10.1.0.0/29", "203.0.113.0/26", "fd00:1::/127", "bad") }),
		}}
	case 4:
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: g.selector(), PodSelector: g.selector()}
	case 5:
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: g.selector()}
	}
	return networkingv1.NetworkPolicyPeer{PodSelector: g.selector()}
}

func (g gen) port() networkingv1.NetworkPolicyPort {
	var p networkingv1.NetworkPolicyPort
	if !g.oneIn(3) {
		proto := pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP, "ICMP")
		p.Protocol = &proto
	}
	if g.oneIn(4) {
		return p
	}
	port := pick(g, intstr.FromInt32(80), intstr.FromInt32(80), intstr.FromInt32(53), intstr.FromString("web"), intstr.FromString("dns"), intstr.FromInt32(0))
	p.Port = &port
	if g.oneIn(3) {
		end := pick[int32](g, 80, 8080, 65535)
		p.EndPort = &end
	}
	return p
}

// ports of connections.
func (g gen) connection() Port {
	p, err := ParsePort(pick(g, "80", "81", "53", "8080", "1", "65535", "web", "dns"), pick(g, "TCP", "TCP", "UDP", "SCTP"))
	if g.oneIn(6) {
		p, err = ParsePort("", "ICMP")
	}
	if err != nil {
		panic(err)
	}
	return p
}
