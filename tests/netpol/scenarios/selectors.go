package scenarios

import (
	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// selectors are about pods that selectors match, as subject and as peer.
var selectors = []Scenario{
	holds("from pods of the own namespace by label", np("NP-12"),
		policies(NewPolicy("x", "from-b", Subject("pod=a"), Ingress(From(Pods("pod=b"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.ExpectPeer("x/b", "x/a", true)
		}),

	holds("an empty podSelector is the own namespace, no pod of another", np("NP-13"),
		policies(NewPolicy("x", "same-namespace", Ingress(From(Pods(""))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectPeer("x/*", "x/*", true)
		}),

	holds("an empty namespaceSelector is all namespaces", np("NP-13"),
		policies(NewPolicy("x", "all-namespaces", Subject("pod=a"), Ingress(From(Namespaces(""))))), nil),

	holds("from another namespace by its label", np("NP-12", "NP-14"),
		policies(NewPolicy("x", "from-y", Subject("pod=a"), Ingress(From(Namespaces("ns=y"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.ExpectPeer("y/*", "x/a", true)
		}),

	holds("from another namespace by the label that the server adds", np("NP-14"),
		policies(NewPolicy("x", "from-y", Subject("pod=a"), Ingress(From(Namespaces("kubernetes.io/metadata.name=y"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.ExpectPeer("y/*", "x/a", true)
		}),

	holds("from namespaces by an expression over the label that the server adds", np("NP-14", "NP-24"),
		policies(NewPolicy("x", "not-x", Subject("pod=a"), Ingress(From(Namespaces("kubernetes.io/metadata.name notin (x)"))))),
		func(r *Reachability) { r.ExpectPeer("x/*", "x/a", false) }),

	holds("to namespaces by an expression over the label that the server adds", np("NP-14", "NP-24"),
		policies(NewPolicy("x", "not-y", Subject("pod=a"), Egress(To(Namespaces("kubernetes.io/metadata.name notin (y)"))))),
		func(r *Reachability) { r.ExpectPeer("x/a", "y/*", false) }),

	holds("from pods by an expression", np("NP-24"),
		policies(NewPolicy("x", "in", Subject("pod=a"), Ingress(From(Pods("pod in (b,d)"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.ExpectPeer("x/b", "x/a", true)
		}),

	holds("from namespaces by an expression", np("NP-24"),
		policies(NewPolicy("x", "in", Subject("pod=a"), Ingress(From(Namespaces("ns in (y,w)"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.ExpectPeer("y/*", "x/a", true)
		}),

	{
		Name: "NotIn and DoesNotExist select what lacks the key", Statements: np("NP-24"),
		Steps: []Step{{
			Change: func(s *State) {
				s.LabelPod("x/b", "tier=front")
				s.LabelNamespace("y", "team=red")
				s.Apply(
					NewPolicy("x", "not-front", Subject("pod=a"), Ingress(From(Pods("tier notin (front)")))),
					NewPolicy("z", "no-team", Subject("pod=a"), Ingress(From(Namespaces("!team")))),
					NewPolicy("z", "team", Subject("pod=b"), Ingress(From(Namespaces("team")))),
				)
			},
			Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
				r.ExpectPeer("x/c", "x/a", true)
				r.ExpectPeer("y/*", "z/a", false)
				r.ExpectAllIngress("z/b", false)
				r.ExpectPeer("y/*", "z/b", true)
			},
		}},
	},

	holds("a subject by an expression", np("NP-6", "NP-24"),
		policies(NewPolicy("x", "not-a", Subject("pod notin (a)"), DenyIngress())),
		func(r *Reachability) { r.ExpectAllIngress("x/[bc]", false) }),

	holds("pod or namespace: two peers", np("NP-9", "NP-12"),
		policies(NewPolicy("x", "or", Subject("pod=a"), Ingress(From(Pods("pod=b"), Namespaces("ns=y"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.ExpectPeer("x/b", "x/a", true)
			r.ExpectPeer("y/*", "x/a", true)
		}),

	holds("pod and namespace: one peer", np("NP-12"),
		policies(NewPolicy("x", "and", Subject("pod=a"), Ingress(From(Pods("pod=b").InNamespaces("ns=y"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.ExpectPeer("y/b", "x/a", true)
		}),

	holds("pod and namespace for each of several", np("NP-9", "NP-12"),
		policies(NewPolicy("x", "several", Subject("pod=a"), Ingress(From(
			Pods("pod in (b,c)").InNamespaces("ns in (y,z)"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.ExpectPeer("[yz]/[bc]", "x/a", true)
		}),

	holds("several pods of the own namespace: two peers", np("NP-9"),
		policies(NewPolicy("x", "any", Subject("pod=a"), Ingress(From(Pods("pod=b"), Pods("pod=c"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.ExpectPeer("x/[bc]", "x/a", true)
		}),

	holds("two requirements of one selector must both hold", np("NP-24"),
		policies(NewPolicy("x", "none", Subject("pod=a"), Ingress(From(Pods("pod=b,pod notin (b)"), Pods("pod in (b,c),pod notin (c)"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.ExpectPeer("x/b", "x/a", true)
		}),

	holds("no pod of another namespace is selected or isolated", np("NP-1", "NP-12"),
		policies(NewPolicy("y", "only-own", Subject("pod=a"), Ingress(From(Pods("pod=a"))))),
		func(r *Reachability) { r.ExpectAllIngress("y/a", false) }),

	holds("egress to a pod of another namespace", np("NP-12"),
		policies(NewPolicy("x", "to-y-a", Subject("pod=a"), Egress(To(Pods("pod=a").InNamespaces("ns=y"))))),
		func(r *Reachability) {
			r.ExpectAllEgress("x/a", false)
			r.ExpectPeer("x/a", "y/a", true)
		}),

	holds("egress to pods of the own namespace", np("NP-12"),
		policies(NewPolicy("x", "to-own", Egress(To(Pods("pod in (a,b)"))))),
		func(r *Reachability) {
			r.ExpectAllEgress("x/*", false)
			r.ExpectPeer("x/*", "x/[ab]", true)
		}),

	holds("a namespace closed to all but itself", np("NP-12"),
		policies(NewPolicy("y", "own", Ingress(From(Pods(""))))),
		func(r *Reachability) {
			r.ExpectPeer("x/*", "y/*", false)
			r.ExpectPeer("z/*", "y/*", false)
		}),

	holds("a selector with an empty value needs the key", np("NP-24"),
		policies(NewPolicy("x", "empty", Subject("pod=a"), Ingress(From(Pods("tier="))))),
		func(r *Reachability) { r.ExpectAllIngress("x/a", false) }),
}
