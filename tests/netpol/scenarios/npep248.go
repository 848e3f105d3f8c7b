package scenarios

import . "sigs.k8s.io/kube-network-policies/tests/netpol"

const (
	fromAll = `from: [{all: {}}]`
	toAll   = `egress: [{action: Deny, to: [{all: {}}]}]`
)

// matchAll is NPEP-248: everything as a peer.
var matchAll = needingAll([]Scenario{
	onModel(outside, holds("NPEP-248: all sources are denied, pods and machines outside", np("CN-45"),
		policies(onXFrom("Admin", `{action: Deny, `+fromAll+`}`)),
		func(r *Reachability) { r.ExpectAllIngress("x/*", false) })),
	onModel(outside, holds("NPEP-248: all destinations are denied", np("CN-45"),
		policies(onSubject("subject: {namespaces: {matchLabels: {ns: x}}}", toAll)),
		func(r *Reachability) { r.ExpectAllEgress("x/*", false) })),
	onModel(outside, holds("NPEP-248: pods pass, all others are denied", np("CN-4", "CN-45"),
		policies(onXFrom("Admin", `{action: Pass, `+fromPods+`}`, `{action: Deny, `+fromAll+`}`)),
		func(r *Reachability) { r.ExpectPeer("outside/*", "x/*", false) })),
	onModel(outside, holds("NPEP-248: all are accepted on one port where NetworkPolicy isolates", np("CN-1", "CN-45"),
		policies(onXFrom("Admin", `{action: Accept, `+fromAll+`, protocols: [{tcp: {destinationPort: {number: 80}}}]}`), NewPolicy("x", "deny", DenyIngress())),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.For(TCP(80)).ExpectAllIngress("x/*", true)
		})),
	onModel(outside, holds("NPEP-248: a port that the subject names", np("CN-42", "CN-45"),
		policies(onXFrom("Admin", `{action: Deny, `+fromAll+`, protocols: [{destinationNamedPort: tcp-81}]}`)),
		func(r *Reachability) { r.For(TCP(81)).ExpectAllIngress("x/*", false) })),
	onModel(hostNetwork, holds("NPEP-248: nodes are denied, and each still reaches its own pods", np("CN-33", "CN-45"),
		policies(onXFrom("Baseline", `{action: Deny, `+fromAll+`}`)), func(r *Reachability) { r.ExpectAllIngress("x/*", false) })),
}, ClusterNetworkPolicies, NPEP248)
