package scenarios

import (
	"strings"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

const (
	fromPods    = `from: [{namespaces: {}}]`
	fromWorld   = `from: [{networks: [0.0.0.0/0, "::/0"]}]`
	fromOutside = `from: [{networks: [203.0.113.0/24, "2001:db8::/32"]}]`
	fromNodes   = `from: [{nodes: {}}]`
	fromNode2   = `from: [{nodes: {matchLabels: {kubernetes.io/hostname: node-2}}}]`
)

// ingressByAddress is NPEP-127: networks and nodes as peers of ingress. No policy keeps the node of
// a pod from the pod.
var ingressByAddress = needingAll([]Scenario{
	onModel(outside, holds("NPEP-127: a network outside is denied, pods are not", np("CN-42"),
		policies(onXFrom("Admin", `{action: Deny, `+fromOutside+`}`)),
		func(r *Reachability) { r.ExpectPeer("outside/*", "x/*", false) })),
	onModel(outside, holds("NPEP-127: networks are pods and machines outside alike", np("CN-15", "CN-42"),
		policies(onXFrom("Admin", `{action: Deny, `+fromWorld+`}`)),
		func(r *Reachability) { r.ExpectAllIngress("x/*", false) })),
	onModel(outside, holds("NPEP-127: pods pass, the world is denied", np("CN-4", "CN-42"),
		policies(onXFrom("Admin", `{action: Pass, `+fromPods+`}`, `{action: Deny, `+fromWorld+`}`)),
		func(r *Reachability) { r.ExpectPeer("outside/*", "x/*", false) })),
	onModel(outside, holds("NPEP-127: a network is accepted where NetworkPolicy isolates", np("CN-1", "CN-42"),
		policies(onXFrom("Admin", `{action: Accept, `+fromOutside+`}`), NewPolicy("x", "deny", DenyIngress())),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectPeer("outside/*", "x/*", true)
		})),
	onModel(outside, holds("NPEP-127: a network on one port", np("CN-13", "CN-42"),
		policies(onXFrom("Admin", `{action: Deny, `+fromOutside+`, protocols: [{tcp: {destinationPort: {number: 80}}}]}`)),
		func(r *Reachability) { r.For(TCP(80)).ExpectPeer("outside/*", "x/*", false) })),
	onModel(outside, holds("NPEP-127: a port that the subject names", np("CN-42"),
		policies(onXFrom("Admin", `{action: Deny, `+fromOutside+`, protocols: [{destinationNamedPort: tcp-81}]}`)),
		func(r *Reachability) { r.For(TCP(81)).ExpectPeer("outside/*", "x/*", false) })),
	onModel(outside, holds("NPEP-127: Baseline denies a network, NetworkPolicy opens it for one pod", np("CN-5", "CN-42"),
		policies(onXFrom("Baseline", `{action: Deny, `+fromOutside+`}`),
			NewPolicy("x", "open", Subject("pod=a"), Ingress(From(Block("0.0.0.0/0"), Block("::/0"))))),
		func(r *Reachability) {
			r.ExpectPeer("outside/*", "x/*", false)
			r.ExpectPeer("outside/*", "x/a", true)
		})),
	{
		Name: "NPEP-127: networks around single pods", Statements: np("CN-15", "CN-42"),
		Steps: []Step{{
			Name: "two pods by their addresses",
			Change: func(s *State) {
				s.Apply(onXFrom("Admin", `{action: Deny, from: [`+networksOf(s, "y/a")+`, `+networksOf(s, "z/b")+`]}`))
			},
			Want: func(r *Reachability) {
				r.ExpectPeer("y/a", "x/*", false)
				r.ExpectPeer("z/b", "x/*", false)
			},
		}, {
			Name: "one of them is accepted before",
			Change: func(s *State) {
				s.Apply(onXFrom("Admin", `{action: Accept, from: [`+networksOf(s, "y/a")+`]}`,
					`{action: Deny, from: [`+networksOf(s, "y/a")+`, `+networksOf(s, "z/b")+`]}`))
			},
			Want: keepOut("z/b", "x/*"),
		}, {Name: "no policy", Change: withdraw("ClusterNetworkPolicy/p")}},
	},
	onModel(hostNetwork, holds("NPEP-127: nodes are denied, and each still reaches its own pods", np("CN-33", "CN-42"),
		policies(onXFrom("Admin", `{action: Deny, `+fromNodes+`}`)), keepOut("host/*", "x/*"))),
	onModel(Model{HostNetwork: true, Hosts: []Host{Outside()}, Pods: []string{"a", "b"}}, holds("NPEP-127: nodes by their labels, and machines that are none", np("CN-42"),
		policies(onXFrom("Admin", `{action: Deny, `+fromNode2+`}`)), keepOut("host/node-2", "x/*"))),
	onModel(hostNetwork, holds("NPEP-127: nodes on one port, where NetworkPolicy denies all", np("CN-1", "CN-42"),
		policies(onXFrom("Admin", `{action: Accept, `+fromNodes+`, protocols: [{tcp: {destinationPort: {number: 80}}}]}`), NewPolicy("x", "deny", DenyIngress())),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.For(TCP(80)).ExpectPeer("host/*", "x/*", true)
		})),
}, ClusterNetworkPolicies, NPEP127)

// networksOf returns a peer with the addresses of a pod.
func networksOf(s *State, pod string) string {
	return `{networks: ["` + strings.Join(s.CIDRs(pod), `", "`) + `"]}`
}
