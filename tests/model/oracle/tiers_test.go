package oracle

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// decides returns the rest of a spec: every pod is a subject, and all traffic from and to pods gets
// the action.
func decides(action string) string {
	const rules = `subject: {namespaces: {}}, ingress: [{action: %[1]s, from: [{namespaces: {}}]}], egress: [{action: %[1]s, to: [{namespaces: {}}]}]}`
	return fmt.Sprintf(rules, action)
}

func TestTiers(t *testing.T) {
	admin := func(name string, priority int, action string) *v1alpha1.AdminNetworkPolicy {
		return anp(t, name, fmt.Sprintf("{priority: %d, ", priority)+decides(action))
	}
	cluster := func(name, tier string, priority int, action string) *proposed.ClusterNetworkPolicy {
		return cnp(t, name, fmt.Sprintf("{tier: %s, priority: %d, ", tier, priority)+decides(action))
	}
	baseline := func(name, action string) *v1alpha1.BaselineAdminNetworkPolicy {
		return banp(t, name, "{"+decides(action))
	}
	open := policy(t, "x/open", `{policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}`)
	closed := policy(t, "x/closed", `{policyTypes: [Ingress, Egress]}`)
	for _, test := range []struct {
		name     string
		policies []any
		want     bool
	}{
		{"nothing", nil, true},
		{"CN-1 Admin before NetworkPolicy, denies", []any{admin("a", 5, "Deny"), open}, false},
		{"CN-1 Admin before NetworkPolicy, allows", []any{admin("a", 5, "Allow"), closed}, true},
		{"CN-1 Admin of the other kind", []any{cluster("a", "Admin", 5, "Deny"), open}, false},
		{"CN-1 Accept", []any{cluster("a", "Admin", 5, "Accept"), closed}, true},
		{"CN-1 Baseline decides last", []any{baseline("default", "Deny")}, false},
		{"CN-1 Baseline of the other kind", []any{cluster("a", "Baseline", 5, "Deny")}, false},
		{"CN-5 NetworkPolicy before Baseline, allows", []any{open, baseline("default", "Deny")}, true},
		{"CN-5 NetworkPolicy before Baseline, denies", []any{closed, baseline("default", "Allow"), cluster("b", "Baseline", 0, "Accept")}, false},
		{"CN-2 smaller priority first", []any{admin("a", 9, "Deny"), admin("b", 3, "Allow")}, true},
		{"CN-2 not as text", []any{admin("a", 10, "Deny"), admin("b", 9, "Allow")}, true},
		{"CN-2 over both kinds", []any{admin("a", 4, "Allow"), cluster("b", "Admin", 3, "Deny")}, false},
		{"CN-2 in the Baseline tier", []any{cluster("a", "Baseline", 9, "Deny"), cluster("b", "Baseline", 3, "Accept")}, true},
		{"CN-2 a priority is of its tier", []any{cluster("a", "Baseline", 1, "Deny"), cluster("b", "Admin", 9, "Accept")}, true},
		{"CN-4 Pass to NetworkPolicy", []any{admin("a", 1, "Pass"), admin("b", 2, "Allow"), closed}, false},
		{"CN-4 Pass leaves out the rest", []any{admin("a", 1, "Pass"), admin("b", 2, "Deny"), cluster("c", "Admin", 3, "Deny"), open}, true},
		{"CN-4 Pass without NetworkPolicy, to Baseline", []any{admin("a", 1, "Pass"), admin("b", 2, "Allow"), baseline("default", "Deny")}, false},
		{"CN-4 Pass without anything", []any{admin("a", 1, "Pass"), admin("b", 2, "Deny")}, true},
		{"CN-4 Pass out of Baseline", []any{cluster("a", "Baseline", 1, "Pass"), cluster("b", "Baseline", 2, "Deny"), baseline("default", "Deny")}, true},
		{"CN-7 equal priorities, by name", []any{admin("b", 1, "Deny"), admin("a", 1, "Allow")}, true},
		{"CN-8 equal priorities, by kind first", []any{cluster("a", "Admin", 1, "Deny"), admin("b", 1, "Allow")}, true},
		{"CN-8 BANP behind all Baseline CNPs", []any{baseline("default", "Deny"), cluster("z", "Baseline", 1000, "Accept")}, true},
		{"CN-32 BANP of another name", []any{baseline("other", "Deny")}, true},
		{"a tier of the future", []any{cluster("a", "Emergency", 1, "Deny")}, true},
		{"an action of the future denies", []any{admin("a", 1, "Redirect"), open}, false},
		{"ANP does not know Accept", []any{admin("a", 1, "Accept"), open}, false},
		{"CNP does not know Allow", []any{cluster("a", "Admin", 1, "Allow"), open}, false},
		{"BANP does not know Pass", []any{baseline("default", "Pass")}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := world(append(test.policies, pod("x/a", "10.0.0.1", ""), pod("x/b", "10.0.0.2", ""))...)
			check(t, c, tcp("10.0.0.2", "10.0.0.1", 80), test.want)
		})
	}
}

// TestUnknownLocalAddressAndAdministrators: NP-55 for administrators' policies, on either side.
func TestUnknownLocalAddressAndAdministrators(t *testing.T) {
	const known, unknown = "10.1.0.1", "10.1.0.9"
	n := &corev1.Node{}
	n.Name = here
	n.Spec.PodCIDRs = []string{"10.1.0.0/24"}
	const spec = `{priority: 1, subject: {namespaces: {}}, ingress: [%s]}`
	for _, test := range []struct {
		name             string
		rule             string
		to, from, toHost bool // a packet to the unknown pod, from it to a known one, from it to the node
	}{
		{"Deny of pods", `{action: Deny, from: [{namespaces: {matchLabels: {a: b}}}]}`, false, false, true},
		{"Deny of pods on one port", `{action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {port: 1}}]}`, false, false, true},
		{"Pass of pods, where nothing denies", `{action: Pass, from: [{namespaces: {}}]}`, true, true, true},
		{"Allow of pods", `{action: Allow, from: [{namespaces: {}}]}`, true, true, true},
		{"CN-30 Pass of an unknown peer", `{action: Pass, from: [{}]}`, false, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := world(n, pod("x/a", known, ""), anp(t, "p", fmt.Sprintf(spec, test.rule)))
			check(t, c, tcp(known, unknown, 80), test.to)
			check(t, c, tcp(unknown, known, 80), test.from)
			checkQuery(t, c, Query{Packet: tcp(unknown, "192.168.0.1", 80), ToHost: true}, test.toHost)
		})
	}
	out := anp(t, "p", `{priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]}`)
	isolates := policy(t, "x/p", `{podSelector: {matchLabels: {app: none}}, policyTypes: [Egress]}`)
	toHost := Query{Packet: tcp(unknown, "192.168.0.1", 80), ToHost: true}
	checkQuery(t, world(n, out), toHost, false)
	checkQuery(t, world(n, isolates), toHost, true)
	check(t, world(n, isolates), tcp(unknown, outside, 80), false)
	check(t, world(n, banp(t, "other", "{"+decides("Deny"))), tcp(unknown, outside, 80), true) // CN-32
	check(t, world(n, anp(t, "p", `{subject: {}, egress: [{action: Deny, to: [{namespaces: {}}]}]}`)), tcp(unknown, outside, 80), true)
}

// TestUnknownAddressElsewhere: CN-35.
func TestUnknownAddressElsewhere(t *testing.T) {
	const known, unknown, ofNode = "10.1.0.1", "10.2.0.9", "10.2.0.254"
	own, other := node(here, "192.168.0.1", ""), node(there, ofNode, "")
	own.Spec.PodCIDRs, other.Spec.PodCIDRs = []string{"10.1.0.0/24"}, []string{"10.2.0.0/24"}
	const toPods, toAll = `to: [{namespaces: {}}]`, `to: [{networks: [0.0.0.0/0]}]`
	closed := policy(t, "x/closed", `{policyTypes: [Egress]}`)
	open := policy(t, "x/open", `{policyTypes: [Egress], egress: [{}]}`)
	for _, test := range []struct {
		name  string
		tier  string
		rules string
		more  []any
		want  bool // for packets to port 80 of the unknown pod
	}{
		{"Deny", "Admin", `{action: Deny, ` + toPods + `}`, nil, false},
		{"Deny on another port", "Admin", `{action: Deny, ` + toPods + `, protocols: [{tcp: {destinationPort: {number: 81}}}]}`, nil, true},
		{"Deny on a named port", "Admin", `{action: Deny, ` + toPods + `, protocols: [{destinationNamedPort: web}]}`, nil, false},
		{"Accept by address before", "Admin", `{action: Accept, ` + toAll + `}, {action: Deny, ` + toPods + `}`, nil, true},
		{"Pass by address before", "Admin", `{action: Pass, ` + toAll + `}, {action: Deny, ` + toPods + `}`, nil, true},
		{"Accept of pods before", "Admin", `{action: Accept, ` + toPods + `}, {action: Deny, ` + toPods + `}`, nil, false},
		{"Pass of pods to a denial", "Admin", `{action: Pass, ` + toPods + `}, {action: Accept, ` + toAll + `}`, []any{closed}, false},
		{"Pass of pods, where nothing denies", "Admin", `{action: Pass, ` + toPods + `}, {action: Accept, ` + toAll + `}`, nil, true},
		{"Baseline", "Baseline", `{action: Deny, ` + toPods + `}`, nil, false},
		{"CN-5 Baseline is not asked", "Baseline", `{action: Deny, ` + toPods + `}`, []any{open}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := cnp(t, "p", `{tier: `+test.tier+`, priority: 1, subject: {namespaces: {}}, egress: [`+test.rules+`]}`)
			c := world(append(test.more, own, other, pod("x/a", known, ""), p)...)
			check(t, c, tcp(known, unknown, 80), test.want)
			check(t, c, tcp(known, ofNode, 80), true)
			check(t, c, tcp(unknown, known, 80), true)
		})
	}
	in := anp(t, "p", `{priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}`)
	c := world(own, other, pod("x/a", known, ""), in)
	check(t, c, tcp(unknown, known, 80), true)
	check(t, c, tcp("10.1.0.9", outside, 80), false)
	check(t, c, tcp(known, unknown, 80), true)
}
