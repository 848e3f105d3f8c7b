package scenarios

import (
	corev1 "k8s.io/api/core/v1"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// sctp is a model that is probed by all three protocols.
var sctp = Model{Protocols: []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}}

// fromYAt returns a scenario that opens x/a to namespace y on ports.
func fromYAt(ports ...Port) Scenario {
	return holds("", nil, policies(NewPolicy("x", "ports", Subject("pod=a"), Ingress(From(Namespaces("ns=y")), At(ports...)))), nil)
}

// opens completes a scenario of fromYAt: only these kinds of traffic are allowed.
func opens(name string, statements []string, scenario Scenario, kinds ...Traffic) Scenario {
	scenario.Name, scenario.Statements = name, statements
	scenario.Steps[0].Want = func(r *Reachability) {
		r.ExpectAllIngress("x/a", false)
		if len(kinds) > 0 {
			r.For(kinds...).ExpectPeer("y/*", "x/a", true)
		}
	}
	return scenario
}

// portRules are about numbers, ranges and protocols.
var portRules = []Scenario{
	opens("a port of TCP", np("NP-9", "NP-25"), fromYAt(TCP(81)), TCP(81)),
	opens("a port of UDP, and nothing of TCP", np("NP-9", "NP-25"), fromYAt(UDP(80)), UDP(80)),
	opens("a port without a protocol is of TCP", np("NP-10"), fromYAt(Traffic{Port: 80}), TCP(80)),
	opens("an item without anything is all of TCP", np("NP-10"), fromYAt(Traffic{}), TCP(0)),
	opens("a protocol without a port is all of it", np("NP-10"), fromYAt(UDP(0)), UDP(0)),
	opens("several ports, each of its protocol", np("NP-9"), fromYAt(TCP(80), UDP(81)), TCP(80), UDP(81)),
	onModel(sctp, opens("a port of SCTP is not one of TCP", np("NP-42"), fromYAt(SCTP(80)), SCTP(80))),
	onModel(sctp, opens("a protocol SCTP without a port", np("NP-42"), fromYAt(SCTP(0)), SCTP(0))),
	onModel(sctp, opens("a port of TCP lets no SCTP in", np("NP-42"), fromYAt(TCP(80)), TCP(80))),
	holds("a policy with only SCTP ports isolates from TCP and UDP", np("NP-42"),
		policies(NewPolicy("x", "sctp", Ingress(At(SCTP(80))))),
		func(r *Reachability) { r.ExpectAllIngress("x/*", false) }),
	onModel(sctp, holds("default deny holds for SCTP", np("NP-1", "NP-42"),
		policies(NewPolicy("x", "deny", DenyIngress())),
		func(r *Reachability) { r.ExpectAllIngress("x/*", false) })),
	onModel(sctp, holds("SCTP from a pod of another namespace only", np("NP-12", "NP-42"),
		policies(NewPolicy("x", "from-y-a", Subject("pod=a"), Ingress(From(Pods("pod=a").InNamespaces("ns=y")), At(SCTP(80), SCTP(81))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.For(SCTP(0)).ExpectPeer("y/a", "x/a", true)
		})),

	onModel(rangeModel, opens("a range includes both its ends and nothing beyond", np("NP-26"),
		fromYAt(Range("TCP", 8000, 8010)), TCP(8000), TCP(8005), TCP(8010))),
	onModel(rangeModel, opens("a range of UDP", np("NP-26"), fromYAt(Range("UDP", 8005, 8011)), UDP(8005), UDP(8010), UDP(8011))),
	onModel(rangeModel, opens("a range of one port without a protocol", np("NP-10", "NP-26"), fromYAt(Range("", 8010, 8010)), TCP(8010))),
	onModel(rangeModel, opens("a range up to the last port", np("NP-26"), fromYAt(Range("TCP", 8010, 65535)), TCP(8010), TCP(8011))),
	onModel(rangeModel, holds("egress to a range", np("NP-26"),
		policies(NewPolicy("x", "range", Egress(To(Namespaces("ns in (x,y)")), At(Range("TCP", 8000, 8005), UDP(7999))))),
		func(r *Reachability) {
			r.ExpectAllEgress("x/*", false)
			r.For(TCP(8000), TCP(8005), UDP(7999)).ExpectPeer("x/*", "[xy]/*", true)
		})),

	// Why authors need ranges.
	onModel(Model{Ports: []int32{29999, 30000, 32767, 32768}, Pods: []string{"a", "b"}, Hosts: []Host{Outside()}},
		holds("egress to the NodePorts of another cluster", np("NP-17", "NP-26"),
			policies(NewPolicy("x", "node-ports", Egress(To(Block("203.0.113.0/24"), Block("2001:db8::/64")), At(Range("TCP", 30000, 32767), Range("UDP", 30000, 32767))))),
			func(r *Reachability) {
				r.ExpectAllEgress("x/*", false)
				r.For(TCP(30000), TCP(32767), UDP(30000), UDP(32767)).ExpectPeer("x/*", "outside/client", true)
			})),
	onModel(Model{Ports: []int32{110, 111, 112, 444, 445, 446}, Pods: []string{"a", "b"}},
		opens("all ports but 111 and 445", np("NP-9", "NP-26"),
			fromYAt(Range("TCP", 1, 110), Range("TCP", 112, 444), Range("TCP", 446, 65535)), TCP(110), TCP(112), TCP(444), TCP(446))),
	onModel(Model{Ports: []int32{20, 21, 49151, 49152, 65535}, Pods: []string{"a", "b"}},
		opens("passive FTP", np("NP-9", "NP-26"), fromYAt(TCP(21), Range("TCP", 49152, 65535)), TCP(21), TCP(49152), TCP(65535))),

	holds("egress to ports of anyone", np("NP-8"),
		policies(NewPolicy("x", "egress", Subject("pod=a"), Egress(At(TCP(80), UDP(0))))),
		func(r *Reachability) {
			r.For(TCP(81)).ExpectAllEgress("x/a", false)
		}),

	holds("a peer of one rule and a port of another do not add up", np("NP-9"),
		policies(NewPolicy("x", "rules", Subject("pod=a"),
			Ingress(From(Namespaces("ns=y")), At(TCP(80))),
			Ingress(From(Pods("pod=b")), At(UDP(81))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.For(TCP(80)).ExpectPeer("y/*", "x/a", true)
			r.For(UDP(81)).ExpectPeer("x/b", "x/a", true)
		}),

	{
		Name: "ports by steps: one, the other, none", Statements: np("NP-25", "NP-53"),
		Steps: []Step{
			{Name: "port 80", Change: apply(NewPolicy("x", "p", Subject("pod=a"), Ingress(At(TCP(80))))), Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
				r.For(TCP(80)).ExpectAllIngress("x/a", true)
			}},
			{Name: "port 81", Change: apply(NewPolicy("x", "p", Subject("pod=a"), Ingress(At(TCP(81))))), Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
				r.For(TCP(81)).ExpectAllIngress("x/a", true)
			}},
			{Name: "neither", Change: apply(NewPolicy("x", "p", Subject("pod=a"), Ingress(At(TCP(82))))), Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
			}},
		},
	},
}

// rangeModel is probed just below, in and just above ranges.
var rangeModel = Model{Ports: []int32{7999, 8000, 8005, 8010, 8011}, Pods: []string{"a", "b"}}

// namedPorts are about names that destination pods declare.
var namedPorts = []Scenario{
	opens("a named port", np("NP-27"), fromYAt(Named("TCP", "tcp-80")), TCP(80)),
	opens("a named port of UDP", np("NP-27"), fromYAt(Named("UDP", "udp-81")), UDP(81)),
	opens("a name that is declared for UDP does not match without the protocol", np("NP-10", "NP-27"), fromYAt(Named("", "udp-81"))),
	opens("a name that no pod declares matches nothing", np("NP-29"), fromYAt(Named("TCP", "nothing"))),
	holds("ingress from all on a named port", np("NP-27"),
		policies(NewPolicy("x", "named", Subject("pod=a"), Ingress(At(Named("TCP", "tcp-81"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.For(TCP(81)).ExpectAllIngress("x/a", true)
		}),
	holds("egress on a named port", np("NP-27"),
		policies(NewPolicy("x", "named", Subject("pod=a"), Egress(At(Named("TCP", "tcp-80"))))),
		func(r *Reachability) {
			r.ExpectAllEgress("x/a", false)
			r.For(TCP(80)).ExpectAllEgress("x/a", true)
		}),
	onModel(Model{Protocols: sctp.Protocols, Pods: []string{"a", "b"}},
		opens("a named port of SCTP", np("NP-27", "NP-42"), fromYAt(Named("SCTP", "sctp-80")), SCTP(80))),

	{
		Name: "a name with another number on each pod", Statements: np("NP-27"),
		Steps: []Step{
			{
				Name: "ingress: the number of each subject",
				Change: func(s *State) {
					for name, number := range map[string]int32{"x/a": 80, "x/b": 81} {
						declare(s, name, corev1.ContainerPort{Name: "web", ContainerPort: number})
					}
					s.Apply(NewPolicy("x", "web", Ingress(At(Named("", "web")))))
				},
				Want: func(r *Reachability) {
					r.ExpectAllIngress("x/*", false)
					r.For(TCP(80)).ExpectAllIngress("x/a", true)
					r.For(TCP(81)).ExpectAllIngress("x/b", true)
				},
			}, {
				Name: "egress: the number of each destination",
				Change: func(s *State) {
					s.Withdraw("x/web")
					s.Apply(NewPolicy("z", "web", Egress(To(Namespaces("")), At(Named("TCP", "web")))))
				},
				Want: func(r *Reachability) {
					r.ExpectAllEgress("z/*", false)
					r.For(TCP(80)).ExpectPeer("z/*", "x/a", true)
					r.For(TCP(81)).ExpectPeer("z/*", "x/b", true)
				},
			},
		},
	},
	{
		Name: "one name for TCP and for UDP, and on a sidecar", Statements: np("NP-28"),
		Steps: []Step{{
			Change: func(s *State) {
				declare(s, "x/a", corev1.ContainerPort{Name: "dns", ContainerPort: 80, Protocol: corev1.ProtocolUDP},
					corev1.ContainerPort{Name: "dns", ContainerPort: 80, Protocol: corev1.ProtocolTCP})
				s.RecreatePod("x/b")
				s.ChangePod("x/b", func(pod *corev1.Pod) {
					pod.Spec.InitContainers = []corev1.Container{
						{Name: "init", Ports: []corev1.ContainerPort{{Name: "dns", ContainerPort: 81, Protocol: corev1.ProtocolUDP}}},
						{Name: "sidecar", RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{{Name: "dns", ContainerPort: 80, Protocol: corev1.ProtocolUDP}}},
					}
				})
				s.Apply(NewPolicy("x", "dns", Ingress(At(Named("UDP", "dns")))))
			},
			Want: func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.For(UDP(80)).ExpectAllIngress("x/[ab]", true)
			},
		}},
	},
}

// declare replaces a pod by one that declares only these ports. The ports of a pod cannot change.
func declare(s *State, name string, ports ...corev1.ContainerPort) {
	s.RecreatePod(name)
	s.ChangePod(name, func(pod *corev1.Pod) { pod.Spec.Containers[0].Ports = ports })
}
