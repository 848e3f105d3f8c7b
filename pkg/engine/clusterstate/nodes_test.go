package clusterstate

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// anyName gives every address the same names.
type anyName policy.Names

func (n anyName) Names(_, _ netip.Addr) *policy.Names { return (*policy.Names)(&n) }

// TestNamesDoNotMatchTheCluster has a single policy, which names domains, so that only domains need
// the nodes.
func TestNamesDoNotMatchTheCluster(t *testing.T) {
	in := fixture()
	for _, n := range in.Nodes {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: map[string]string{"n1": "192.168.0.1", "n2": "192.168.0.2"}[n.Name]}}
	}
	in.Nodes[1].Spec.PodCIDRs = []string{"10.7.0.0/24"}
	cnp := &proposed.ClusterNetworkPolicy{}
	cnp.Name = "names"
	mustRead(`{tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Accept, to: [{domainNames: [a.test]}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]}`, &cnp.Spec)
	in.Policies = []compile.Object{cnp}
	c := newFrom(in)
	allows := func(to string) bool {
		return c.Snapshot().Evaluate(policy.Query{Learned: anyName{"a.test"}, Packet: packet.Packet{Proto: packet.TCP,
			Src: netip.MustParseAddrPort("10.0.0.1:40000"), Dst: netip.AddrPortFrom(netip.MustParseAddr(to), 80)}}).Allowed()
	}
	for to, want := range map[string]bool{
		"192.0.2.1": true, "10.8.0.1": true, "192.168.0.3": true,
		"10.0.1.1": false, "10.0.2.1": false, "10.7.0.9": false, "192.168.0.1": false, "192.168.0.2": false,
	} {
		if got := allows(to); got != want {
			t.Errorf("%s is allowed: %v, want %v", to, got, want)
		}
	}
	c.Delete(compile.KindNode, "", "n2")
	c.Delete(compile.KindPod, "z", "a")
	for _, to := range []string{"192.168.0.2", "10.7.0.9", "10.0.2.1"} {
		if !allows(to) {
			t.Errorf("%s, which no pod or node has any more, is denied", to)
		}
	}
	added := pod("z", "new", "n2", "192.0.2.1")
	c.Set(compile.NewPod(added))
	if allows("192.0.2.1") {
		t.Error("192.0.2.1, which has become a pod's, is allowed")
	}
}
