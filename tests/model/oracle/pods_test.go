package oracle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAddressOwner(t *testing.T) {
	const ip = "10.0.0.1"
	for _, test := range []struct {
		name string
		pods []any
		want string
	}{
		{"no pod", nil, ""},
		{"NP-50 succeeded", []any{pod("x/a", ip, "", phase("Succeeded"))}, ""},
		{"NP-50 failed", []any{pod("x/a", ip, "", phase("Failed"))}, ""},
		{"NP-50 pending counts", []any{pod("x/a", ip, "", phase("Pending"))}, "a"},
		{"NP-51 terminating counts", []any{pod("x/a", ip, "", terminating)}, "a"},
		{"NP-22 host network", []any{pod("x/a", ip, "", hostNetwork)}, ""},
		{"NP-52 no address yet", []any{pod("x/a", "", "")}, ""},
		{"NP-52 podIP alone", []any{pod("x/a", "", "", func(p *corev1.Pod) { p.Status.PodIP = ip })}, "a"},
		{"NP-52 second address", []any{pod("x/a", "fd00::1,"+ip, "")}, "a"},
		{"NP-20 mapped address", []any{pod("x/a", "::ffff:"+ip, "")}, "a"},
		{"NP-50 live before ended",
			[]any{pod("x/a", ip, "", created(1, "1")), pod("x/b", ip, "", phase("Failed"), created(2, "2"))}, "a"},
		{"NP-51 staying before terminating",
			[]any{pod("x/a", ip, "", created(1, "1")), pod("x/b", ip, "", terminating, created(2, "2"))}, "a"},
		{"NP-51 created last",
			[]any{pod("x/a", ip, "", created(2, "1")), pod("x/b", ip, "", created(1, "2"))}, "a"},
		{"NP-51 same second, smaller UID",
			[]any{pod("x/a", ip, "", created(1, "2")), pod("x/b", ip, "", created(1, "1"))}, "b"},
		{"NP-51 no UIDs, smaller name",
			[]any{pod("x/b", ip, ""), pod("x/a", ip, "")}, "a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := world(test.pods...)
			for range 2 { // both orders
				got := ""
				if p := c.podAt(probe(ip, ip, 0, 0).Src.Addr()); p != nil {
					got = p.Name
				}
				if got != test.want {
					t.Errorf("got owner %q, want %q", got, test.want)
				}
				if len(c.Pods) == 2 {
					c.Pods[0], c.Pods[1] = c.Pods[1], c.Pods[0]
				}
			}
		})
	}
}

// TestReusedAddress: NP-50, NP-51. The labels of an address's former pod do not affect its current
// pod.
func TestReusedAddress(t *testing.T) {
	const ip, server = "10.0.0.1", "10.0.0.2"
	old := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	c := world(
		pod("x/server", server, "app=server"),
		pod("x/old", ip, "app=friend", old),
		pod("x/new", ip, "app=other"),
		policy(t, "x/p", `{podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]}`),
	)
	check(t, c, tcp(ip, server, 80), false)
	c.Pods[1].Labels, c.Pods[2].Labels = c.Pods[2].Labels, c.Pods[1].Labels
	check(t, c, tcp(ip, server, 80), true)
}

func TestHairpin(t *testing.T) { // NP-30
	c := world(
		pod("x/a", "10.0.0.1,10.0.0.9", ""),
		pod("x/b", "10.0.0.2", ""),
		policy(t, "x/deny", `{policyTypes: [Ingress, Egress]}`),
	)
	check(t, c, tcp("10.0.0.1", "10.0.0.1", 80), true)
	check(t, c, tcp("10.0.0.1", "10.0.0.9", 80), true)
	check(t, c, tcp("10.0.0.1", "10.0.0.2", 80), false)
}

func TestHostNetworkPods(t *testing.T) { // NP-22, NP-23, NP-33
	const a, host = "10.0.0.1", "192.168.0.2"
	objects := []any{
		pod("x/a", a, "app=a"),
		pod("x/host", host, "app=host", hostNetwork, onNode(there)),
		pod("x/here", "192.168.0.1", "app=host", hostNetwork),
	}
	bySelector := policy(t, "x/p", `{ingress: [{from: [{podSelector: {}}, {namespaceSelector: {}}]}]}`)
	byBlock := policy(t, "x/q", `{ingress: [{from: [{ipBlock: {cidr: 192.168.0.0/24}}]}]}`)
	all := policy(t, "x/r", `{policyTypes: [Ingress, Egress]}`)

	check(t, world(append(objects, bySelector)...), tcp(host, a, 80), false)
	check(t, world(append(objects, byBlock)...), tcp(host, a, 80), true)
	check(t, world(append(objects, all)...), tcp(host, "192.168.0.1", 80), true) // no subject
}

func TestUnknownLocalAddress(t *testing.T) { // NP-55
	const known, unknown = "10.1.0.1", "10.1.0.9"
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: here}}
	node.Spec.PodCIDRs = []string{"10.1.0.0/24", "fd00:1::/64"}
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: there}}
	other.Spec.PodCIDRs = []string{"10.2.0.0/24"}

	open := world(node, other, pod("x/a", known, ""))
	check(t, open, tcp(outside, unknown, 80), true)

	// A policy of another namespace that selects no known pod may select the unknown one.
	c := world(node, other, pod("x/a", known, ""), policy(t, "y/p", `{podSelector: {matchLabels: {app: a}}}`))
	check(t, c, tcp(outside, unknown, 80), false)
	check(t, c, tcp(known, unknown, 80), false)
	check(t, c, tcp(unknown, outside, 80), true) // nothing isolates for egress
	check(t, c, tcp(outside, "fd00:1::9", 80), false)
	check(t, c, tcp(outside, known, 80), true)      // known, not isolated
	check(t, c, tcp(outside, "10.2.0.9", 80), true) // another node's pod
	check(t, c, tcp(unknown, unknown, 80), false)   // not a known pod, so not a hairpin

	c.NetworkPolicies[0].Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	check(t, c, tcp(outside, unknown, 80), true)
	check(t, c, tcp(unknown, outside, 80), false)
}
