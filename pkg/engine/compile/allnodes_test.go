package compile_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

func TestAllNodesEvaluateTogether(t *testing.T) {
	in := fixture()
	in.AllNodes, in.NodeName = true, ""
	for name, cidr := range map[string]string{"n1": "10.0.0.0/23", "n2": "10.0.2.0/24"} {
		in.Nodes = append(in.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: cidr}})
	}
	closed := netpol(t, "closed", "podSelector: {}\npolicyTypes: [Ingress]")
	remote := closed.DeepCopy()
	remote.Namespace = "z" // whose pods run on n2
	in.Policies = []compile.Object{closed, remote}
	s := check(t, in, `
		deny  y/a x/a tcp/80
		deny  y/a z/a tcp/80
		allow x/a y/a tcp/80
		allow z/a y/a tcp/80
		deny  y/a 10.0.1.99 tcp/80
		deny  y/a 10.0.2.99 tcp/80
	`)
	if got, want := len(s.Local()), 2*len(in.Pods); got != want {
		t.Errorf("%d addresses are local, want %d", got, want)
	}
	if got := s.Ranges(policy.Ingress); len(got) != 2 {
		t.Errorf("ranges %v, want those of both nodes", got)
	}
}

// Unreadable items keep their indices, so that explanations can refer to items by index.
func TestUnreadableItemsKeepTheirPlaces(t *testing.T) {
	in := fixture()
	in.Policies = append(in.Policies, netpol(t, "odd", `
podSelector: {}
ingress:
- from: [{}, {podSelector: {}}]
  ports: [{protocol: ICMP}, {port: 80}]
`))
	s := clusterstate.Compile(in.Input)
	rule := s.Endpoint(in.addr(t, "x/a")).Ingress.Rules[0]
	if len(rule.Peers) != 2 || rule.Peers[1].Pods == nil {
		t.Errorf("peers are %+v", rule.Peers)
	}
	if len(rule.Ports) != 2 || rule.Ports[1].First != 80 {
		t.Errorf("ports are %+v", rule.Ports)
	}
	check(t, in, "deny x/b x/a icmp\nallow x/b x/a tcp/80")
	zero := packet.Packet{Src: netip.AddrPortFrom(in.addr(t, "x/b"), 0), Dst: netip.AddrPortFrom(in.addr(t, "x/a"), 0)}
	if d := s.Evaluate(policy.Query{Packet: zero}); d.Action != policy.Deny {
		t.Errorf("protocol 0: %v", d)
	}
}

func TestChainsNameTheirPolicies(t *testing.T) {
	in := fixture()
	in.Policies = []compile.Object{
		netpol(t, "b", "podSelector: {}"), netpol(t, "a", "podSelector: {}\negress: [{}]"), netpol(t, "c", "podSelector: {matchLabels: {pod: none}}"),
	}
	e := clusterstate.Compile(in.Input).Endpoint(in.addr(t, "x/a"))
	for _, tc := range []struct {
		name  string
		chain *policy.Chain
		want  []string
	}{{"ingress", e.Ingress, []string{"x/a", "x/b"}}, {"egress", e.Egress, []string{"x/a"}}} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, ref := range tc.chain.Policies {
				got = append(got, ref.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("policies (-want +got):\n%s", diff)
			}
		})
	}
}
