package scenarios

import (
	networkingv1 "k8s.io/api/networking/v1"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// defaults are about isolation, policy types, and rules that match everything or nothing.
var defaults = []Scenario{
	holds("default deny of ingress to a namespace", np("NP-1", "NP-6", "NP-7"),
		policies(NewPolicy("x", "deny", DenyIngress())),
		func(r *Reachability) { r.ExpectAllIngress("x/*", false) }),

	holds("default deny of egress from a namespace", np("NP-1", "NP-7", "NP-37"),
		policies(NewPolicy("x", "deny", DenyEgress())),
		func(r *Reachability) { r.ExpectAllEgress("x/*", false) }),

	holds("default deny of both directions", np("NP-1", "NP-3", "NP-30"),
		policies(NewPolicy("x", "deny", DenyIngress(), DenyEgress())),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectAllEgress("x/*", false)
		}),

	holds("deny of ingress to one pod", np("NP-1"),
		policies(NewPolicy("x", "deny-a", Subject("pod=a"), DenyIngress())),
		func(r *Reachability) { r.ExpectAllIngress("x/a", false) }),

	holds("deny of egress from one pod", np("NP-1", "NP-37"),
		policies(NewPolicy("x", "deny-a", Subject("pod=a"), DenyEgress())),
		func(r *Reachability) { r.ExpectAllEgress("x/a", false) }),

	holds("one empty rule allows everything in", np("NP-7", "NP-8"),
		policies(NewPolicy("x", "allow-all", Ingress())), nil),

	holds("one empty rule allows everything out", np("NP-7", "NP-8"),
		policies(NewPolicy("x", "allow-all", Egress())), nil),

	holds("ingress to one target is open in a closed namespace", np("NP-2", "NP-7"),
		policies(
			NewPolicy("x", "deny", DenyIngress()),
			NewPolicy("x", "open-a", Subject("pod=a"), Ingress())),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectAllIngress("x/a", true)
		}),

	holds("no policy types and no egress rule isolate ingress only", np("NP-4"),
		policies(NewPolicy("x", "untyped", DenyIngress(), Types())),
		func(r *Reachability) { r.ExpectAllIngress("x/*", false) }),

	holds("no policy types and an egress rule isolate both directions", np("NP-4"),
		policies(NewPolicy("x", "untyped", Egress(To(Pods(""))), Types())),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectAllEgress("x/*", false)
		}),

	holds("type Egress with ingress rules ignores these", np("NP-5"),
		policies(NewPolicy("x", "egress", Ingress(From(Pods("pod=b"))), Types(networkingv1.PolicyTypeEgress))),
		func(r *Reachability) { r.ExpectAllEgress("x/*", false) }),

	holds("type Ingress with egress rules ignores these", np("NP-5"),
		policies(NewPolicy("x", "ingress", Egress(To(Pods("pod=b"))), Types(networkingv1.PolicyTypeIngress))),
		func(r *Reachability) { r.ExpectAllIngress("x/*", false) }),

	holds("a policy of both types has a rule in each direction", np("NP-1", "NP-3", "NP-9"),
		policies(NewPolicy("x", "both", Subject("pod=a"),
			Ingress(From(Namespaces("ns=y")), At(TCP(80))),
			Egress(To(Namespaces("ns=z")), At(UDP(81))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.ExpectAllEgress("x/a", false)
			r.For(TCP(80)).ExpectPeer("y/*", "x/a", true)
			r.For(UDP(81)).ExpectPeer("x/a", "z/*", true)
		}),

	holds("egress denied at the client, though the server allows all", np("NP-3"),
		policies(
			NewPolicy("x", "deny-b", Subject("pod=b"), DenyEgress()),
			NewPolicy("x", "open-a", Subject("pod=a"), Ingress())),
		func(r *Reachability) { r.ExpectAllEgress("x/b", false) }),

	holds("ingress denied at the server, though the client may send everywhere", np("NP-3"),
		policies(
			NewPolicy("x", "open-b", Subject("pod=b"), Egress()),
			NewPolicy("x", "deny-a", Subject("pod=a"), DenyIngress())),
		func(r *Reachability) { r.ExpectAllIngress("x/a", false) }),

	{
		Name: "the directions of one pod are independent", Statements: np("NP-1", "NP-37"),
		Steps: []Step{
			{
				Name:   "ingress from x/b only",
				Change: apply(NewPolicy("x", "in", Subject("pod=a"), Ingress(From(Pods("pod=b"))))),
				Want: func(r *Reachability) {
					r.ExpectAllIngress("x/a", false)
					r.ExpectPeer("x/b", "x/a", true)
				},
			}, {
				Name:   "and egress to x/b only",
				Change: apply(NewPolicy("x", "out", Subject("pod=a"), Egress(To(Pods("pod=b"))))),
				Want: func(r *Reachability) {
					r.ExpectAllIngress("x/a", false)
					r.ExpectAllEgress("x/a", false)
					r.ExpectPeer("x/b", "x/a", true)
					r.ExpectPeer("x/a", "x/b", true)
				},
			}, {
				Name:   "egress to all again",
				Change: apply(NewPolicy("x", "out", Subject("pod=a"), Egress())),
				Want: func(r *Reachability) {
					r.ExpectAllIngress("x/a", false)
					r.ExpectPeer("x/b", "x/a", true)
				},
			}, {
				Name:   "ingress open, egress denied",
				Change: apply(NewPolicy("x", "in", Subject("pod=a"), Ingress()), NewPolicy("x", "out", Subject("pod=a"), DenyEgress())),
				Want:   func(r *Reachability) { r.ExpectAllEgress("x/a", false) },
			},
		},
	},
}
