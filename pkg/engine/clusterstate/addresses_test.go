package clusterstate

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// TestPodsOfOtherNodesTakeNoAddress: NP-51. A pod of another node that shows the address of a pod
// of this node gains no access in either direction, even if it is younger or this node's pod
// terminates.
func TestPodsOfOtherNodesTakeNoAddress(t *testing.T) {
	const addr, server, outside = "10.0.0.101", "10.0.0.1", "192.0.2.1"
	with := func(p *corev1.Pod, changes ...func(*corev1.Pod)) *corev1.Pod {
		for _, change := range changes {
			change(p)
		}
		return p
	}
	away := func(p *corev1.Pod) { p.Spec.NodeName, p.Labels = "n2", map[string]string{"pod": "friend"} }
	younger := func(p *corev1.Pod) { p.CreationTimestamp = metav1.Unix(1000, 0) }
	terminating := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	host := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	replaced := func(p *corev1.Pod) { p.UID = "uid-new" }
	nowhere := func(p *corev1.Pod) { p.Namespace = "unknown" }
	for _, tc := range []struct {
		name      string
		here      *corev1.Pod
		sandboxes []Sandbox
		away      *corev1.Pod
		owner     string // of the address
		unknown   bool   // it may belong to an unknown pod of this node
		conflict  bool   // a conflict is reported
	}{
		{"younger elsewhere", newcomer("here", addr), nil, with(newcomer("away", addr), away, younger), "x/here", false, true},
		{"older elsewhere, terminating here", with(newcomer("here", addr), terminating, younger), nil, with(newcomer("away", addr), away), "x/here", false, false},
		{"known by the sandbox alone", newcomer("here"), []Sandbox{sandbox("here", "uid-here", addr)}, with(newcomer("away", addr), away, younger), "x/here", false, true},
		{"terminating elsewhere", newcomer("here", addr), nil, with(newcomer("away", addr), away, terminating), "x/here", false, false},
		{"ended here", with(newcomer("here", addr), ended), nil, with(newcomer("away", addr), away), "x/away", false, false},
		{"network of the node here", with(newcomer("here", addr), host), nil, with(newcomer("away", addr), away), "x/away", false, false},
		{"another address here by now", newcomer("here", addr), []Sandbox{sandbox("here", "uid-here", "10.0.0.102")}, with(newcomer("away", addr), away), "x/away", false, false},
		{"another pod of that name here", with(newcomer("here"), replaced), []Sandbox{sandbox("here", "uid-here", addr)}, with(newcomer("away", addr), away), "x/away", false, false},
		{"only the other family has another address", newcomer("here", addr), []Sandbox{sandbox("here", "uid-here", "fd00::1")}, with(newcomer("away", addr), away, younger), "x/here", false, true},
		{"another address here by now, none elsewhere", newcomer("here", addr), []Sandbox{sandbox("here", "uid-here", "10.0.0.102")}, with(newcomer("away"), away), "", true, false},
		{"its namespace is not known", with(newcomer("here", addr), nowhere), nil, with(newcomer("away", addr), away, younger), "", true, true},
	} {
		c := New(Config{NodeName: "n1", Features: compile.AllFeatures(), AwaitNamespaces: true})
		c.setInput(fixture())
		isolate := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "isolate"}}
		mustRead(`{podSelector: {matchLabels: {pod: here}}, policyTypes: [Ingress, Egress]}`, &isolate.Spec)
		deny := &proposed.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny"}}
		mustRead(`{tier: Admin, priority: 1, subject: {pods: {podSelector: {matchLabels: {pod: here}}, namespaceSelector: {}}}, `+
			`egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]}`, &deny.Spec)
		objects := []any{isolate, deny, compile.NewPod(tc.here), compile.NewPod(tc.away)}
		for order := range 2 {
			t.Run(tc.name, func(t *testing.T) {
				for i := range objects {
					c.Set(objects[(i*3+order)%len(objects)])
				}
				c.SetSandboxes(tc.sandboxes)
				s := c.Snapshot()
				got := ""
				if e := s.Endpoint(netip.MustParseAddr(addr)); e != nil {
					got = e.String()
				}
				if got != tc.owner {
					t.Errorf("the address belongs to %q, want %q", got, tc.owner)
				}
				if got, want := len(c.Conflicts()) > 0, tc.conflict; got != want {
					t.Errorf("conflicts %v, want any %v", c.Conflicts(), want)
				}
				denied := tc.owner == "x/here" || tc.unknown
				for _, ends := range [][2]string{{outside, addr}, {addr, outside}, {addr, server}} {
					p := packet.Packet{Proto: packet.TCP, Src: netip.AddrPortFrom(netip.MustParseAddr(ends[0]), 1), Dst: netip.AddrPortFrom(netip.MustParseAddr(ends[1]), 80)}
					if d := s.Evaluate(policy.Query{Packet: p}); d.Allowed() == denied || tc.unknown != (d.Reason == policy.UnknownPod) {
						t.Errorf("%v: %v, want denied %v, waiting %v", p, d, denied, tc.unknown)
					}
				}
				for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
					steered := slices.Contains(s.Selected(d), netip.MustParseAddr(addr))
					in := slices.ContainsFunc(s.Ranges(d), func(r netip.Prefix) bool { return r.Contains(netip.MustParseAddr(addr)) })
					if steered != (tc.owner == "x/here") || in != tc.unknown {
						t.Errorf("%v: steered %v, in a range %v", d, steered, in)
					}
				}
				for _, p := range []*corev1.Pod{tc.here, tc.away} {
					c.Delete(compile.KindPod, p.Namespace, p.Name)
				}
				if s := c.Snapshot(); s.Endpoint(netip.MustParseAddr(addr)) != nil || len(c.addresses.contested)+len(c.addresses.unknown) > 0 {
					t.Errorf("without the pods: %v, contested %v, unknown %v", s.Endpoint(netip.MustParseAddr(addr)), c.addresses.contested, c.addresses.unknown)
				}
			})
		}
	}
}

// TestAllNodesAreEqualForTools: NP-51. With AllNodes, only the API says which pod has an address.
func TestAllNodesAreEqualForTools(t *testing.T) {
	in := fixture()
	in.AllNodes = true
	older, younger := newcomer("older", "10.0.0.101"), newcomer("younger", "10.0.0.101")
	younger.Spec.NodeName, younger.UID, younger.CreationTimestamp = "n2", types.UID("z"), metav1.Unix(1000, 0)
	in.Pods = append(in.Pods, older, younger)
	if e := Compile(in).Endpoint(netip.MustParseAddr("10.0.0.101")); e == nil || e.String() != "x/younger" {
		t.Errorf("the address belongs to %v", e)
	}
}
