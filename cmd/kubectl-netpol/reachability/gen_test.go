package reachability

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

// gen generates random clusters with two nodes and a few pods on each.
type gen struct{ *random.Gen }

// blocks are generated in addition to random.CIDRs, and more often. Each contains one of
// two nodes or one of two external addresses.
var blocks = []string{"10.1.0.0/28", "10.1.0.0/29", "192.168.0.0/31", "203.0.113.0/25", "203.0.113.0/26", "fd00:1::/127"}

func newGen(seed uint64) gen {
	return gen{&random.Gen{
		Rand: rand.New(rand.NewPCG(seed, 0)), Namespaces: []string{"x", "y"}, CIDRs: slices.Concat(random.CIDRs, blocks, blocks, blocks), Rules: 3,
	}}
}

// forClusters runs do on n random clusters.
func forClusters(t *testing.T, n int, do func(t *testing.T, g gen, in clusterstate.Input)) {
	t.Helper()
	for seed := range uint64(n) {
		g := newGen(seed)
		do(t, g, g.cluster())
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func (g gen) cluster() clusterstate.Input {
	in := clusterstate.Input{Features: compile.Features{EndPort: !g.OneIn(5), SCTP: !g.OneIn(5), Nodes: !g.OneIn(5), DomainNames: !g.OneIn(5)}}
	for i, node := range []string{"n1", "n2"} {
		in.Nodes = append(in.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node, Labels: g.Labels()},
			Spec:       corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.%d.0.0/24", i+1), fmt.Sprintf("fd00:%d::/64", i+1)}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.168.0.%d", i+1)}, {Type: corev1.NodeHostName, Address: node},
				{Type: corev1.NodeExternalIP, Address: fmt.Sprintf("203.0.113.%d", i+1)},
			}},
		})
	}
	for _, ns := range g.Namespaces {
		if !g.OneIn(5) {
			in.Namespaces = append(in.Namespaces, g.Namespace(ns))
		}
		for i := range 1 + g.IntN(4) {
			in.Pods = append(in.Pods, g.pod(ns, i))
		}
	}
	for i := range g.IntN(6) {
		in.Policies = append(in.Policies, g.NetworkPolicy(random.Pick(g, g.Namespaces...), fmt.Sprintf("np%d", i)))
	}
	g.administrators(&in)
	return in
}

func (g gen) pod(ns string, i int) *corev1.Pod {
	pod := g.Pod(ns, fmt.Sprintf("p%d", i))
	node, host := 1, i+2
	if pod.Spec.NodeName == "n2" {
		node = 2
	}
	if ns == "y" {
		host += 16
	}
	ip4, ip6 := fmt.Sprintf("10.%d.0.%d", node, host), fmt.Sprintf("fd00:%d::%d", node, host)
	if pod.Spec.HostNetwork {
		ip4, ip6 = fmt.Sprintf("192.168.0.%d", node), fmt.Sprintf("fd00:f::%d", node)
	}
	for _, ip := range random.Pick(g, []string{ip4}, []string{ip4}, []string{ip6}, []string{ip4, ip6}) {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return pod
}

// connection returns a random port.
func (g gen) connection() Port {
	p, err := ParsePort(random.Pick(g, "80", "81", "53", "8080", "1", "65535", "web", "dns"), random.Pick(g, "TCP", "TCP", "UDP", "SCTP"))
	if g.OneIn(6) {
		p, err = ParsePort("", "ICMP")
	}
	if err != nil {
		panic(err)
	}
	return p
}

// administrators adds administrators' policies of every kind to half of the clusters.
func (g gen) administrators(in *clusterstate.Input) {
	if g.OneIn(2) {
		return
	}
	for i := range g.IntN(3) {
		in.Policies = append(in.Policies, g.AdminNetworkPolicy(fmt.Sprintf("anp%d", i)))
	}
	for i := range g.IntN(3) {
		in.Policies = append(in.Policies, g.ClusterNetworkPolicy(fmt.Sprintf("cnp%d", i)))
	}
	if g.OneIn(2) {
		in.Policies = append(in.Policies, g.baseline())
	}
}

func (g gen) baseline() compile.Object { return g.BaselineAdminNetworkPolicy("default") }
