package scenarios

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// onXFrom is a ClusterNetworkPolicy whose subject is namespace x, with rules for ingress that may
// have fields of proposals.
func onXFrom(tier string, rules ...string) Policy {
	return ProposedYAML("p", `{tier: `+tier+`, priority: 10, subject: {namespaces: {matchLabels: {ns: x}}}, ingress: [`+strings.Join(rules, ", ")+`]}`)
}

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

// serviceAccounts is NPEP-173: subjects and peers by the service accounts of pods. The pods called a
// have account web.
var serviceAccounts = needingAll([]Scenario{
	withAccounts("NPEP-173: a source is denied, by account",
		onXFrom("Admin", `{action: Deny, from: [`+accounts("", "web")+`]}`), keepOut("*/a", "x/*")),
	withAccounts("NPEP-173: a destination is denied, by account",
		onSubject("subject: {namespaces: {matchLabels: {ns: x}}}", `egress: [{action: Deny, to: [`+accounts("", "web")+`]}]`), keepOut("x/*", "*/a")),
	withAccounts("NPEP-173: an account of one namespace",
		onXFrom("Admin", `{action: Deny, from: [`+accounts("y", "web")+`]}`), keepOut("y/a", "x/*")),
	withAccounts("NPEP-173: pods without an account have the default one",
		onXFrom("Admin", `{action: Deny, from: [`+accounts("", "default")+`]}`), func(r *Reachability) {
			keepOut("*/b", "x/*")(r)
			keepOut("*/c", "x/*")(r)
		}),
	withAccounts("NPEP-173: several accounts, one of no pod",
		onXFrom("Admin", `{action: Deny, from: [`+accounts("z", "none", "web", "default")+`]}`), keepOut("z/*", "x/*")),
	withAccounts("NPEP-173: subjects, in both directions",
		onSubject("subject: "+accounts("x", "web"), `ingress: [{action: Deny, `+fromPods+`}], egress: [{action: Deny, to: [{namespaces: {}}]}]`), func(r *Reachability) {
			keepOut("*", "x/a")(r)
			keepOut("x/a", "*")(r)
		}),
	{
		Name: "NPEP-173: an account accepts where NetworkPolicy isolates, until the pod is replaced", Statements: np("CN-1", "CN-43"),
		Steps: []Step{{
			Name: "accepted",
			Change: func(s *State) {
				giveAccount("web", "y/a")(s)
				s.Apply(onXFrom("Admin", `{action: Accept, from: [`+accounts("", "web")+`]}`), NewPolicy("x", "deny", DenyIngress()))
			},
			Want: func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.ExpectPeer("y/a", "x/*", true)
			},
		}, {
			Name:   "a new pod of another account has the name",
			Change: giveAccount("other", "y/a"),
			Want:   func(r *Reachability) { r.ExpectAllIngress("x/*", false) },
		}},
	},
}, ClusterNetworkPolicies, NPEP173)

// cidrGroups is NPEP-182: groups of networks as peers. Sources need NPEP-127, too.
var cidrGroups = append(needingAll([]Scenario{
	onModel(outside, holds("NPEP-182: a group is denied, by name", np("CN-15", "CN-44"),
		policies(toGroups("Deny", `names: [partners]`), NewCIDRGroup("partners", "", outsideNetworks...), NewCIDRGroup("other", "", "0.0.0.0/0", "::/0")),
		keepOut("x/*", "outside/*"))),
	{
		Name: "NPEP-182: groups are denied, by their labels", Statements: np("CN-44"),
		Steps: []Step{{
			Name: "two of three",
			Change: func(s *State) {
				s.Apply(toGroups("Deny", `selector: {matchLabels: {env: cloud}}`), NewCIDRGroup("a", "env=cloud", s.CIDRs("y/a")...),
					NewCIDRGroup("b", "env=cloud", s.CIDRs("z/b")...), NewCIDRGroup("c", "env=own", s.CIDRs("z/c")...))
			},
			Want: func(r *Reachability) {
				r.ExpectPeer("x/*", "y/a", false)
				r.ExpectPeer("x/*", "z/b", false)
			},
		}, {
			Name: "one loses its label, another gets it",
			Change: func(s *State) {
				s.Apply(NewCIDRGroup("b", "", s.CIDRs("z/b")...), NewCIDRGroup("c", "env=cloud", s.CIDRs("z/c")...))
			},
			Want: func(r *Reachability) {
				r.ExpectPeer("x/*", "y/a", false)
				r.ExpectPeer("x/*", "z/c", false)
			},
		}, {
			Name:   "no group has it, so all is denied",
			Change: withdraw("CIDRGroup/a", "CIDRGroup/c"),
			Want:   func(r *Reachability) { r.ExpectAllEgress("x/*", false) },
		}},
	},
	{
		Name: "NPEP-182: a denied group comes, changes and goes", Statements: np("CN-44"),
		Steps: []Step{{
			Name:   "no group yet, so all is denied",
			Change: apply(toGroups("Deny", `names: [g]`)),
			Want:   func(r *Reachability) { r.ExpectAllEgress("x/*", false) },
		}, {
			Name:   "a group without networks",
			Change: apply(NewCIDRGroup("g", "")),
		}, {
			Name:   "with a pod",
			Change: func(s *State) { s.Apply(NewCIDRGroup("g", "", s.CIDRs("y/a")...)) },
			Want:   keepOut("x/*", "y/a"),
		}, {
			Name:   "with another one",
			Change: func(s *State) { s.Apply(NewCIDRGroup("g", "", s.CIDRs("z/b")...)) },
			Want:   keepOut("x/*", "z/b"),
		}, {
			Name:   "deleted",
			Change: withdraw("CIDRGroup/g"),
			Want:   func(r *Reachability) { r.ExpectAllEgress("x/*", false) },
		}},
	},
	{
		Name: "NPEP-182: a group is accepted where NetworkPolicy isolates", Statements: np("CN-1", "CN-44"),
		Steps: []Step{{
			Name:   "no group yet",
			Change: apply(toGroups("Accept", `names: [g, h]`), NewPolicy("x", "deny", DenyEgress())),
			Want:   func(r *Reachability) { r.ExpectAllEgress("x/*", false) },
		}, {
			Name:   "one of two",
			Change: func(s *State) { s.Apply(NewCIDRGroup("g", "", s.CIDRs("y/a")...)) },
			Want: func(r *Reachability) {
				r.ExpectAllEgress("x/*", false)
				r.ExpectPeer("x/*", "y/a", true)
			},
		}, {
			Name:   "both, one without networks",
			Change: apply(NewCIDRGroup("g", ""), NewCIDRGroup("h", "", "0.0.0.0/0", "::/0")),
		}},
	},
	onModel(outside, holds("NPEP-182: a group on one port", np("CN-13", "CN-44"),
		policies(ProposedYAML("p", `{tier: Admin, priority: 10, subject: {namespaces: {matchLabels: {ns: x}}}, egress: [{action: Deny,
			to: [{cidrGroups: {names: [partners]}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}]}`), NewCIDRGroup("partners", "", outsideNetworks...)),
		func(r *Reachability) { r.For(TCP(80)).ExpectPeer("x/*", "outside/*", false) })),
}, ClusterNetworkPolicies, NPEP182), needingAll([]Scenario{
	onModel(outside, holds("NPEP-182: a group of sources is denied", np("CN-42", "CN-44"),
		policies(onXFrom("Admin", `{action: Deny, from: [{cidrGroups: {names: [partners]}}]}`), NewCIDRGroup("partners", "", outsideNetworks...)),
		keepOut("outside/*", "x/*"))),
}, ClusterNetworkPolicies, NPEP127, NPEP182)...)

// outsideNetworks are the networks of hosts outside.
var outsideNetworks = []string{"203.0.113.0/24", "2001:db8::/32"}

// toGroups is a ClusterNetworkPolicy of tier Admin that denies or accepts what namespace x sends to
// groups.
func toGroups(action, groups string) Policy {
	return onSubject("subject: {namespaces: {matchLabels: {ns: x}}}", `egress: [{action: `+action+`, to: [{cidrGroups: {`+groups+`}}]}]`)
}

// withAccounts is a scenario of one policy, in which the pods called a have account web.
func withAccounts(name string, p Policy, want func(*Reachability)) Scenario {
	return Scenario{Name: name, Statements: np("CN-43"), Steps: []Step{{
		Name: "policy",
		Change: func(s *State) {
			giveAccount("web", "x/a", "y/a", "z/a")(s)
			s.Apply(p)
		},
		Want: want,
	}}}
}

// giveAccount replaces pods by new ones of an account, because a pod keeps the account that it was
// created with.
func giveAccount(account string, pods ...string) func(*State) {
	return func(s *State) {
		for _, pod := range pods {
			s.RecreatePod(pod)
			s.ChangePod(pod, func(p *corev1.Pod) { p.Spec.ServiceAccountName = account })
		}
	}
}

// accounts returns a peer or a subject, in one namespace or in all.
func accounts(namespace string, names ...string) string {
	selector := `{}`
	if namespace != "" {
		selector = `{matchLabels: {ns: "` + namespace + `"}}`
	}
	return `{serviceAccounts: {namespaceSelector: ` + selector + `, names: [` + strings.Join(names, ", ") + `]}}`
}

// onSubject is a ClusterNetworkPolicy of tier Admin with this subject and these rules.
func onSubject(subject, rules string) Policy {
	return ProposedYAML("p", `{tier: Admin, priority: 10, `+subject+`, `+rules+`}`)
}

// networksOf returns a peer with the addresses of a pod.
func networksOf(s *State, pod string) string {
	return `{networks: ["` + strings.Join(s.CIDRs(pod), `", "`) + `"]}`
}
