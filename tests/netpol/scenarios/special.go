package scenarios

import (
	corev1 "k8s.io/api/core/v1"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

const runningPhase = corev1.PodRunning

func endPod(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }

// Models of special. Host-network pods share the servers of their nodes.
var (
	hostNetwork = Model{HostNetwork: true, Pods: []string{"a", "b"}, Namespaces: []string{"x", "y"}}
	services    = Model{Vias: []Via{Direct, Service}, Pods: []string{"a", "b"}}
	ways        = Model{Vias: []Via{Direct, Service, NodePort, LoadBalancer}, Pods: []string{"a", "b"}}
	nodePorts   = Model{Vias: []Via{Direct, NodePort}, Pods: []string{"a", "b"}, Hosts: []Host{Outside()}}
	icmp        = Model{Protocols: []corev1.Protocol{ICMP, corev1.ProtocolTCP}, Ports: []int32{80}}
)

// special is traffic other than that from one pod directly to another.
var special = []Scenario{
	onModel(hostNetwork, holds("a pod and its own node always reach each other", np("NP-31", "NP-33"),
		policies(NewPolicy("x", "deny", DenyIngress(), DenyEgress())),
		closed("x"))),
	onModel(hostNetwork, holds("no selector matches a host-network pod", np("NP-13", "NP-22"),
		policies(
			NewPolicy("x", "pods", Ingress(From(Namespaces(""), Pods("").InNamespaces("ns=host"), Pods("")))),
			NewPolicy("y", "pods", Egress(To(Namespaces(""), Pods("pod=a").InNamespaces("ns=host"))))),
		func(r *Reachability) {
			r.ExpectPeer("host/*", "x/*", false)
			r.ExpectPeer("y/*", "host/*", false)
		})),
	onModel(hostNetwork, holds("a policy does not isolate host-network pods", np("NP-23"),
		policies(NewPolicy("host", "deny", DenyIngress(), DenyEgress())), nil)),
	{
		Name: "an ipBlock matches another node", Statements: np("NP-17", "NP-22", "NP-33"), Model: hostNetwork,
		Steps: []Step{{
			Change: func(s *State) {
				s.Apply(NewPolicy("x", "node", Ingress(From(Blocks(s.CIDRs("host/node-2")...)...), At(TCP(80)))))
			},
			Want: func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.For(TCP(80)).ExpectPeer("host/node-2", "x/*", true)
			},
		}},
	},

	onModel(services, holds("a Service is the pod behind it, for ingress", np("NP-25", "NP-34"),
		policies(NewPolicy("x", "in", Subject("pod=a"), Ingress(From(Namespaces("ns=y")), At(TCP(80))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.For(TCP(80)).ExpectPeer("y/*", "x/a", true)
		})),
	onModel(services, holds("a Service is the pod behind it, for egress", np("NP-25", "NP-34"),
		policies(NewPolicy("x", "out", Egress(To(Pods("pod=b").InNamespaces("ns=z")), At(TCP(81), UDP(80))))),
		func(r *Reachability) {
			r.ExpectAllEgress("x/*", false)
			r.For(TCP(81), UDP(80)).ExpectPeer("x/*", "z/b", true)
		})),
	{
		Name: "an ipBlock sees the pod behind a Service", Statements: np("NP-21", "NP-34"), Model: services,
		Steps: []Step{{
			Change: func(s *State) {
				s.Apply(NewPolicy("x", "out", Subject("pod=a"), Egress(To(Blocks(s.CIDRs("y/a")...)...))))
			},
			Want: func(r *Reachability) {
				r.ExpectAllEgress("x/a", false)
				r.ExpectPeer("x/a", "y/a", true)
			},
		}},
	},
	// Nodes may change the source of what comes through a NodePort or a load balancer, so what these
	// scenarios expect does not depend on it.
	onModel(ways, holds("no way leads to a closed pod", np("NP-1", "NP-34"),
		policies(NewPolicy("x", "deny", DenyIngress()), NewPolicy("y", "deny", DenyEgress())),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectAllEgress("y/*", false)
		})),
	onModel(ways, holds("every way leads to the ports of the pod", np("NP-25", "NP-34"),
		policies(NewPolicy("x", "ports", Ingress(At(TCP(80), UDP(81))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.For(TCP(80), UDP(81)).ExpectAllIngress("x/*", true)
		})),
	// externalTrafficPolicy Local keeps the source of what comes from outside.
	onModel(nodePorts, Scenario{
		Name: "a machine outside, through NodePorts", Statements: np("NP-17", "NP-34"),
		Steps: []Step{
			{Name: "it alone, on one port", Change: apply(NewPolicy("x", "in", Ingress(From(Block("203.0.113.0/24"), Block("2001:db8::/32")), At(TCP(80))))), Want: func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.For(TCP(80)).ExpectPeer("outside/client", "x/*", true)
			}},
			{Name: "everyone else", Change: apply(NewPolicy("x", "in", Ingress(From(Block("0.0.0.0/0").Except("203.0.113.0/24"), Block("::/0").Except("2001:db8::/32"))))), Want: func(r *Reachability) {
				r.ExpectPeer("outside/client", "x/*", false)
			}},
		},
	}),
	onModel(services, holds("a closed pod reaches itself, through its Service too", np("NP-30"),
		policies(NewPolicy("x", "deny", DenyIngress(), DenyEgress()), NewPolicy("y", "deny", DenyIngress()), NewPolicy("z", "deny", DenyEgress())),
		func(r *Reachability) {
			r.ExpectAll(false)
			r.ExpectPeer("z/*", "[xy]/*", false)
			r.ExpectPeer("y/*", "z/*", true)
		})),

	onModel(icmp, holds("a rule without ports lets ICMP in", np("NP-8", "NP-40"),
		policies(NewPolicy("x", "from-y", Subject("pod=a"), Ingress(From(Namespaces("ns=y"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.ExpectPeer("y/*", "x/a", true)
		})),
	onModel(icmp, holds("a rule with ports lets no ICMP in", np("NP-40"),
		policies(NewPolicy("x", "tcp", Subject("pod=a"), Ingress(At(Traffic{})), Egress(At(TCP(80))))),
		func(r *Reachability) {
			r.For(Traffic{Protocol: ICMP}).ExpectAllIngress("x/a", false)
			r.For(Traffic{Protocol: ICMP}).ExpectAllEgress("x/a", false)
		})),
	onModel(icmp, holds("default deny stops ICMP in both directions, and no reply", np("NP-37", "NP-40", "NP-41"),
		policies(NewPolicy("x", "deny", DenyIngress()), NewPolicy("y", "deny", DenyEgress())),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectAllEgress("y/*", false)
		})),

	holds("replies pass a server that may not send", np("NP-37"),
		policies(NewPolicy("y", "silent", DenyEgress()), NewPolicy("z", "deaf", DenyIngress())),
		func(r *Reachability) {
			r.ExpectAllEgress("y/*", false)
			r.ExpectAllIngress("z/*", false)
		}),
}

// Traffic of one family.
var (
	over4 = Traffic{Family: corev1.IPv4Protocol}
	over6 = Traffic{Family: corev1.IPv6Protocol}
)

// families are about IPv4 and IPv6 of the same pods.
var families = []Scenario{
	onModel(outside, holds("a block of all of IPv4 matches nothing of IPv6", np("NP-20"),
		policies(NewPolicy("x", "ipv4", Ingress(From(Block("0.0.0.0/0"))))),
		func(r *Reachability) { r.For(over6).ExpectAllIngress("x/*", false) })),
	onModel(outside, holds("a block of all of IPv6 matches nothing of IPv4", np("NP-20"),
		policies(NewPolicy("x", "ipv6", Egress(To(Block("::/0"))))),
		func(r *Reachability) { r.For(over4).ExpectAllEgress("x/*", false) })),
	refusable(holds("a block of mapped addresses is one of IPv4", np("NP-19", "NP-20"),
		policies(NewPolicy("x", "mapped", Ingress(From(Block("::ffff:0.0.0.0/96"))))),
		func(r *Reachability) { r.For(over6).ExpectAllIngress("x/*", false) })), // since 1.37
	{
		Name: "selectors match all addresses of a pod", Statements: np("NP-52"),
		Steps: []Step{{
			Change: apply(
				NewPolicy("x", "from-y-a", Subject("pod=a"), Ingress(From(Pods("pod=a").InNamespaces("ns=y")))),
				NewPolicy("z", "to-y-b", Egress(To(Pods("pod=b").InNamespaces("ns=y")), At(Named("UDP", "udp-80"))))),
			Want: func(r *Reachability) {
				onlyYA(r)
				r.ExpectAllEgress("z/*", false)
				r.For(UDP(80)).ExpectPeer("z/*", "y/b", true)
			},
		}},
	},
	{
		Name: "a block of one family, a selector of both", Statements: np("NP-20"),
		Steps: []Step{{
			Change: func(s *State) {
				s.Apply(NewPolicy("x", "mixed", Subject("pod=a"), Ingress(From(
					Block(s.CIDR("y/a", corev1.IPv4Protocol)), Pods("pod=b").InNamespaces("ns=z")))))
			},
			Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
				r.ExpectPeer("z/b", "x/a", true)
				r.For(over4).ExpectPeer("y/a", "x/a", true)
			},
		}},
	},
}
