package scenarios

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

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
