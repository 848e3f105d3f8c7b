package scenarios

import (
	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// adminPeers are about subjects and peers.
var adminPeers = inBoth(func(v version) []Scenario {
	return []Scenario{
		holds("a subject of pods in namespaces", np("CN-9"),
			policies(v.admin("subject", 10, On(Pods("pod=a").InNamespaces("ns in (x,y)")), DenyFrom(anyPod))),
			func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
				r.ExpectAllIngress("y/a", false)
			}),
		refusable(holds("subjects in all namespaces", np("CN-9"),
			policies(v.admin("subject", 10, On(Pods("pod=a")), DenyFrom(anyPod)), v.baseline(DenyTo(podsOfY))),
			func(r *Reachability) {
				r.ExpectAllIngress("*/a", false)
				r.ExpectAllIngress("y/*", false)
			})), // a live cluster has further namespaces
		holds("peers of pods, of namespaces, and of both in one", np("CN-9", "CN-11"),
			policies(v.admin("peers", 10, onX, DenyFrom(Pods("pod=b"), Pods("pod=a").InNamespaces("ns=z"), podsOfY))),
			func(r *Reachability) {
				r.ExpectPeer("*/b", "x/*", false)
				r.ExpectPeer("z/a", "x/*", false)
				r.ExpectPeer("y/*", "x/*", false)
			}),
		holds("a peer of pods by an expression", np("CN-9", "NP-24"),
			policies(v.admin("peers", 10, onX, DenyTo(Pods("pod notin (a),pod").InNamespaces("ns notin (x)")))),
			keepOut("x/*", "[yz]/[bc]")),
		onModel(outside, holds("all pods do not include hosts outside", np("CN-9", "CN-10"),
			policies(v.admin("pods", 10, onX, DenyFrom(anyPod), DenyTo(anyPod))),
			func(r *Reachability) {
				r.ExpectPeer("[xyz]/*", "x/*", false)
				r.ExpectPeer("x/*", "[xyz]/*", false)
			})),
		onModel(hostNetwork, holds("host-network pods are neither subjects nor peers", np("CN-10", "CN-33"),
			policies(v.admin("pods", 10, everyone, DenyFrom(anyPod), DenyTo(anyPod))),
			func(r *Reachability) { r.ExpectPeer("[xy]/*", "[xy]/*", false) })),

		onModel(outside, holds("networks of one family", np("CN-15"),
			policies(v.admin("ipv4", 10, onX, DenyTo(Networks("0.0.0.0/0")))),
			func(r *Reachability) { r.For(over4).ExpectAllEgress("x/*", false) })),
		onModel(outside, holds("networks are pods and machines outside alike", np("CN-12", "CN-15"),
			policies(v.admin("world", 10, onX, AllowTo(podsOfY), DenyTo(world))),
			func(r *Reachability) {
				r.ExpectAllEgress("x/*", false)
				r.ExpectPeer("x/*", "y/*", true)
			})),
		onModel(outside, holds("pods pass, the world is denied", np("CN-4", "CN-15"),
			policies(v.admin("world", 10, onX, PassTo(anyPod), DenyTo(world)), NewPolicy("x", "out", Subject("pod=a"), Egress(To(podsOfY)))),
			func(r *Reachability) {
				r.ExpectPeer("x/*", "outside/*", false)
				r.ExpectAllEgress("x/a", false)
				r.ExpectPeer("x/a", "y/*", true)
			})),
		{
			Name: "networks around pods", Statements: np("CN-15"),
			Steps: []Step{{
				Name: "two pods by their addresses",
				Change: func(s *State) {
					s.Apply(v.admin("pods", 10, onX, DenyTo(Networks(s.CIDRs("y/a")...), Networks(s.CIDRs("z/b")...))))
				},
				Want: func(r *Reachability) {
					r.ExpectPeer("x/*", "y/a", false)
					r.ExpectPeer("x/*", "z/b", false)
				},
			}, {
				Name: "one of them is allowed before",
				Change: func(s *State) {
					s.Apply(v.admin("allow", 9, onX, AllowTo(Networks(s.CIDRs("y/a")...))))
				},
				Want: keepOut("x/*", "z/b"),
			}},
		},

		onModel(hostNetwork, needing(holds("nodes, the own one too", np("CN-16"),
			policies(v.admin("nodes", 10, onX, DenyTo(Nodes("")))),
			func(r *Reachability) { r.WithOwn().ExpectPeer("x/*", "host/*", false) }), ExperimentalFields)),
		onModel(Model{HostNetwork: true, Hosts: []Host{Outside()}, Pods: []string{"a", "b"}}, needing(holds("nodes by their labels, and machines that are none", np("CN-16"),
			policies(v.admin("nodes", 10, onX, DenyTo(Nodes("kubernetes.io/hostname=node-2")))),
			func(r *Reachability) { r.WithOwn().ExpectPeer("x/*", "host/node-2", false) }), ExperimentalFields)),
		onModel(hostNetwork, needing(holds("nodes on one port, where NetworkPolicy denies all", np("CN-1", "CN-16"),
			policies(v.admin("nodes", 10, onX, AllowTo(Nodes("")).At(TCP(80))), NewPolicy("x", "deny", DenyEgress())),
			func(r *Reachability) {
				r.ExpectAllEgress("x/*", false)
				r.For(TCP(80)).ExpectPeer("x/*", "host/*", true)
			}), ExperimentalFields)),
		onModel(hostNetwork, needing(Scenario{
			Name: "Baseline and the own node", Statements: np("CN-5", "CN-16", "NP-31"),
			Steps: []Step{
				{Name: "denied", Change: apply(v.baseline(onX, DenyTo(Nodes("")))), Want: func(r *Reachability) {
					r.WithOwn().ExpectPeer("x/*", "host/*", false)
				}},
				{Name: "NetworkPolicy isolates, and never denies the own node", Change: apply(NewPolicy("x", "deny", DenyEgress())), Want: func(r *Reachability) {
					r.ExpectAllEgress("x/*", false)
				}},
			},
		}, ExperimentalFields)),
		onModel(hostNetwork, holds("networks around the own node", np("CN-15", "CN-16"),
			policies(v.admin("world", 10, onX, AllowTo(podsOfY), DenyTo(world))),
			func(r *Reachability) {
				r.WithOwn().ExpectAllEgress("x/*", false)
				r.ExpectPeer("x/*", "y/*", true)
			})),
		needing(holds("domain names without known addresses allow nothing", np("CN-17"),
			policies(v.admin("names", 10, onX, AllowTo(DomainNames("example.com", "*.example.com")), DenyTo(world))),
			func(r *Reachability) { r.ExpectAllEgress("x/*", false) }), ExperimentalFields),
	}
})
