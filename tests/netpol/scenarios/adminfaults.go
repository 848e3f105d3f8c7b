package scenarios

import (
	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// The policies have subject x and one rule, for ingress from y or for egress.
func inV1alpha1(rule string) Policy {
	return AdminNetworkPolicyYAML("p", `{priority: 10, subject: {namespaces: {matchLabels: {ns: x}}}, ingress: [`+rule+`]}`)
}

func outV1alpha1(rule string) Policy {
	return AdminNetworkPolicyYAML("p", `{priority: 10, subject: {namespaces: {matchLabels: {ns: x}}}, egress: [`+rule+`]}`)
}

func inV1beta1(rule string) Policy {
	return ClusterNetworkPolicyYAML("p", `{tier: Admin, priority: 10, subject: {namespaces: {matchLabels: {ns: x}}}, ingress: [`+rule+`]}`)
}

func outV1beta1(rule string) Policy {
	return ClusterNetworkPolicyYAML("p", `{tier: Admin, priority: 10, subject: {namespaces: {matchLabels: {ns: x}}}, egress: [`+rule+`]}`)
}

const (
	fromY    = `from: [{namespaces: {matchLabels: {ns: "y"}}}]`
	backward = `ports: [{portRange: {start: 81, end: 80}}]`
)

// adminFaults are fields that cannot be read, and what API servers must take. Faults fail closed: a
// rule that allows matches nothing, a rule that denies or passes denies more.
var adminFaults = needingAll(refusableAll([]Scenario{
	onModel(icmp, holds("a range backwards denies its peers on every port", np("CN-13"),
		policies(inV1alpha1(`{action: Deny, `+fromY+`, `+backward+`}`)), keepOut("y/*", "x/*"))),
	onModel(icmp, holds("a range backwards passes nothing", np("CN-4", "CN-13"),
		policies(inV1alpha1(`{action: Pass, `+fromY+`, `+backward+`}`)), keepOut("y/*", "x/*"))),
	holds("a range backwards allows nothing", np("CN-13"),
		policies(inV1alpha1(`{action: Allow, `+fromY+`, `+backward+`}`), NewPolicy("x", "deny", DenyIngress())),
		func(r *Reachability) { r.ExpectAllIngress("x/*", false) }),
	holds("a protocol that no policy has denies its peers on every port", np("CN-13"),
		policies(inV1alpha1(`{action: Deny, `+fromY+`, ports: [{portNumber: {protocol: ICMP, port: 1}}]}`)), keepOut("y/*", "x/*")),
	holds("a port of a newer version denies its peers on every port", np("CN-30"),
		policies(inV1beta1(`{action: Deny, `+fromY+`, protocols: [{tcp: {}}]}`)), keepOut("y/*", "x/*")),
	holds("an action of a newer version denies", np("CN-30"),
		policies(inV1beta1(`{action: Redirect, `+fromY+`}`), NewPolicy("x", "open", Ingress())), keepOut("y/*", "x/*")),
	onModel(outside, holds("a peer of a newer version denies every peer", np("CN-30"),
		policies(inV1alpha1(`{action: Deny, from: [{}], ports: [{portNumber: {port: 81}}]}`)),
		func(r *Reachability) { r.ExpectAllIngress("x/*", false) })),
	onModel(outside, holds("a peer of a newer version beside another one denies every peer in a Pass, too", np("CN-4", "CN-30"),
		policies(outV1beta1(`{action: Pass, to: [{namespaces: {}}, {}]}`)),
		func(r *Reachability) { r.ExpectAllEgress("x/*", false) })),
	holds("a peer of a newer version allows no pod", np("CN-30"),
		policies(inV1beta1(`{action: Accept, from: [{}]}`), NewPolicy("x", "deny", DenyIngress())),
		func(r *Reachability) { r.ExpectAllIngress("x/*", false) }),
	onModel(outside, holds("a network that is none denies every peer", np("CN-15"),
		policies(outV1alpha1(`{action: Deny, to: [{networks: [300.0.0.0/8]}]}`)),
		func(r *Reachability) { r.ExpectAllEgress("x/*", false) })),
	onModel(outside, holds("an invalid network allows nothing, the next one its own", np("CN-15"),
		policies(outV1alpha1(`{action: Allow, to: [{networks: [300.0.0.0/8, 203.0.113.0/24, "2001:db8::/32"]}]}`), NewPolicy("x", "deny", DenyEgress())),
		func(r *Reachability) {
			r.ExpectAllEgress("x/*", false)
			r.ExpectPeer("x/*", "outside/client", true)
		})),
	onModel(outside, holds("domain names cannot be denied: every peer is", np("CN-17"),
		policies(outV1beta1(`{action: Deny, to: [{domainNames: [example.com]}]}`)),
		func(r *Reachability) { r.ExpectAllEgress("x/*", false) })),
	holds("an empty list of ports is all of them", np("CN-12"),
		policies(inV1alpha1(`{action: Deny, `+fromY+`, ports: []}`)), keepOut("y/*", "x/*")),
	holds("a port without a protocol is TCP", np("CN-13"),
		policies(inV1alpha1(`{action: Deny, `+fromY+`, ports: [{portNumber: {port: 80}}, {portRange: {start: 81, end: 82}}]}`)),
		func(r *Reachability) { r.For(TCP(0)).ExpectPeer("y/*", "x/*", false) }),
	holds("a range of one port", np("CN-13"),
		policies(inV1alpha1(`{action: Deny, `+fromY+`, ports: [{portRange: {start: 81, end: 81}}]}`)),
		func(r *Reachability) { r.For(TCP(81)).ExpectPeer("y/*", "x/*", false) }),
	holds("a BaselineAdminNetworkPolicy of another name is ignored", np("CN-32"),
		policies(BaselineAdminNetworkPolicyYAML("other", `{subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}`)), nil),
	holds("an invalid subject selects no pod", np("CN-9"),
		policies(
			AdminNetworkPolicyYAML("p", `{priority: 10, subject: {}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}`),
			AdminNetworkPolicyYAML("q", `{priority: 10, subject: {namespaces: {matchLabels: {ns: "!"}}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}`)), nil),
}), AdminNetworkPolicies, ClusterNetworkPolicies)
