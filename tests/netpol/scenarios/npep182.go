package scenarios

import (
	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

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
