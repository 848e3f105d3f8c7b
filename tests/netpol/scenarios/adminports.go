package scenarios

import (
	corev1 "k8s.io/api/core/v1"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// adminPorts are about ports and traffic without ports.
var adminPorts = inBoth(func(v version) []Scenario {
	denied := func(name string, statements []string, port Port, want ...Traffic) Scenario {
		return holds(name, statements, policies(v.admin("ports", 10, onX, DenyFrom(podsOfY).At(port))), func(r *Reachability) {
			if len(want) > 0 {
				r.For(want...).ExpectPeer("y/*", "x/*", false)
			}
		})
	}
	named := func(scenario Scenario) Scenario {
		if v.feature == AdminNetworkPolicies { // names are experimental there
			return needing(scenario, ExperimentalFields)
		}
		return scenario
	}
	return []Scenario{
		denied("one port", np("CN-13"), TCP(80), TCP(80)),
		denied("all ports of one protocol", np("CN-13"), UDP(0), UDP(0)),
		holds("some ports of several protocols", np("CN-11", "CN-13"),
			policies(v.admin("ports", 10, onX, DenyTo(podsOfY).At(TCP(81), UDP(80)))),
			func(r *Reachability) { r.For(TCP(81), UDP(80)).ExpectPeer("x/*", "y/*", false) }),
		onModel(rangeModel, denied("a denied range includes both its ends and nothing beyond", np("CN-13"), Range("TCP", 8000, 8010), TCP(8000), TCP(8005), TCP(8010))),
		onModel(rangeModel, holds("an allowed range in what NetworkPolicy denies", np("CN-1", "CN-13"),
			policies(v.admin("range", 10, onX, AllowFrom(podsOfY).At(Range("UDP", 8000, 8010))), NewPolicy("x", "deny", DenyIngress())),
			func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.For(UDP(8000), UDP(8005), UDP(8010)).ExpectPeer("y/*", "x/*", true)
			})),
		onModel(Model{Protocols: sctp.Protocols, Pods: []string{"a", "b"}},
			denied("a port of SCTP", np("CN-13"), SCTP(80), SCTP(80))),

		named(denied("a denied name of a port", np("CN-14"), Named("", "tcp-80"), TCP(80))),
		named(denied("a name needs no protocol", np("CN-14"), Named("", "udp-81"), UDP(81))),
		named(denied("a denied name that no pod declares", np("CN-14"), Named("", "nothing"))),
		named(Scenario{
			Name: "a denied name with another number on each pod", Statements: np("CN-14"),
			Steps: []Step{
				{Name: "ingress: the number of each subject", Change: func(s *State) {
					for name, number := range map[string]int32{"x/a": 80, "x/b": 81} {
						declare(s, name, corev1.ContainerPort{Name: "web", ContainerPort: number})
					}
					s.Apply(v.admin("web", 10, onX, DenyFrom(anyPod).At(Named("", "web"))))
				}, Want: func(r *Reachability) {
					r.For(TCP(80)).ExpectAllIngress("x/a", false)
					r.For(TCP(81)).ExpectAllIngress("x/b", false)
				}},
				{Name: "egress: the number of each destination", Change: apply(v.admin("web", 10, On(Namespaces("ns=z")), DenyTo(anyPod).At(Named("", "web")))), Want: func(r *Reachability) {
					r.For(TCP(80)).ExpectPeer("z/*", "x/a", false)
					r.For(TCP(81)).ExpectPeer("z/*", "x/b", false)
				}},
				{Name: "both protocols of one name", Change: func(s *State) {
					declare(s, "x/a", corev1.ContainerPort{Name: "web", ContainerPort: 80, Protocol: corev1.ProtocolUDP},
						corev1.ContainerPort{Name: "web", ContainerPort: 81})
				}, Want: func(r *Reachability) {
					r.For(UDP(80), TCP(81)).ExpectPeer("z/*", "x/a", false)
					r.For(TCP(81)).ExpectPeer("z/*", "x/b", false)
				}},
			},
		}),
		refusable(Scenario{
			Name: "a named port of networks, which declare none", Statements: np("CN-14"),
			Steps: []Step{
				{Name: "denied: every port", Change: apply(v.admin("web", 10, onX, DenyTo(world).At(Named("", "tcp-80")))), Want: func(r *Reachability) {
					r.ExpectAllEgress("x/*", false)
				}},
				{Name: "allowed: nothing, though pods are there", Change: apply(v.admin("web", 10, onX, AllowTo(world).At(Named("", "tcp-80"), TCP(81)), DenyTo(world))), Want: func(r *Reachability) {
					r.ExpectAllEgress("x/*", false)
					r.For(TCP(81)).ExpectAllEgress("x/*", true)
				}},
				{Name: "allowed beside pods, which declare it", Change: apply(v.admin("web", 10, onX, AllowTo(world, podsOfY).At(Named("", "tcp-80")), DenyTo(world))), Want: func(r *Reachability) {
					r.ExpectAllEgress("x/*", false)
					r.For(TCP(80)).ExpectPeer("x/*", "y/*", true)
				}},
			},
		}), // experimental definitions refuse it

		onModel(icmp, holds("without ports it is ICMP, too", np("CN-12"),
			policies(v.admin("all", 10, onX, DenyFrom(podsOfY), DenyTo(world))),
			func(r *Reachability) {
				r.ExpectAllEgress("x/*", false)
				r.ExpectPeer("y/*", "x/*", false)
			})),
		onModel(icmp, holds("with ports it is no ICMP", np("CN-12"),
			policies(v.admin("tcp", 10, onX, DenyFrom(podsOfY).At(TCP(0), UDP(0), SCTP(0)))),
			func(r *Reachability) { r.For(TCP(0)).ExpectPeer("y/*", "x/*", false) })),
		onModel(icmp, holds("an Allow with ports lets no ICMP in", np("CN-12"),
			policies(v.admin("tcp", 10, onX, AllowFrom(podsOfY).At(TCP(0))), v.baseline(onX, DenyFrom(anyPod))),
			func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.For(TCP(0)).ExpectPeer("y/*", "x/*", true)
			})),
	}
})

// adminServices are about Services with pods behind them.
var adminServices = inBoth(func(v version) []Scenario {
	return []Scenario{
		{
			Name: "administrators see the pod behind a Service", Statements: np("CN-13", "CN-15"), Model: services,
			Steps: []Step{{
				Change: func(s *State) {
					s.Apply(v.admin("out", 10, onX, DenyTo(Networks(s.CIDRs("y/a")...)).At(TCP(80))))
				},
				Want: func(r *Reachability) { r.For(TCP(80)).ExpectPeer("x/*", "y/a", false) },
			}},
		},
		onModel(ways, holds("administrators close every way out", np("CN-15", "CN-19", "NP-34"),
			policies(v.admin("world", 10, onX, DenyTo(world))),
			func(r *Reachability) { r.WithOwn().ExpectAllEgress("x/*", false) })),
		onModel(services, Scenario{
			Name: "a pod reaches itself through its Service, unless an administrator denies it", Statements: np("CN-19", "NP-30"),
			Steps: []Step{
				{Name: "denied in", Change: apply(v.admin("in", 10, onX, DenyFrom(podsOfX))), Want: func(r *Reachability) {
					r.WithOwn().ExpectPeer("x/*", "x/*", false)
				}},
				{Name: "denied out, on one port", Change: apply(v.admin("in", 10, onX, DenyTo(podsOfX).At(TCP(80)))), Want: func(r *Reachability) {
					r.WithOwn().For(TCP(80)).ExpectPeer("x/*", "x/*", false)
				}},
				{Name: "left to NetworkPolicy, which never denies it", Change: apply(
					v.admin("in", 10, onX, PassTo(anyPod), PassFrom(anyPod)), NewPolicy("x", "deny", DenyIngress(), DenyEgress()),
					v.baseline(onX, DenyFrom(anyPod), DenyTo(anyPod))), Want: func(r *Reachability) {
					r.ExpectAllIngress("x/*", false)
					r.ExpectAllEgress("x/*", false)
				}},
				{Name: "left to Baseline", Change: withdraw("x/deny"), Want: func(r *Reachability) {
					r.WithOwn().ExpectAllIngress("x/*", false)
					r.WithOwn().ExpectAllEgress("x/*", false)
				}},
			},
		}),
		holds("replies pass a server that an administrator keeps in", np("CN-18"),
			policies(v.admin("silent", 10, On(podsOfY), DenyTo(anyPod)), v.admin("deaf", 10, On(Namespaces("ns=z")), DenyFrom(anyPod))),
			func(r *Reachability) {
				r.ExpectAllEgress("y/*", false)
				r.ExpectAllIngress("z/*", false)
			}),
	}
})
