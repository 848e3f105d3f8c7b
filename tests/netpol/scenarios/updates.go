package scenarios

import (
	"fmt"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// updates are about changes of policies and labels.
var updates = []Scenario{
	{
		Name: "a policy is updated", Statements: np("NP-53"),
		Steps: []Step{
			{Name: "allow all", Change: apply(NewPolicy("x", "p", Ingress()))},
			{Name: "deny all", Change: apply(NewPolicy("x", "p", DenyIngress())), Want: func(r *Reachability) { r.ExpectAllIngress("x/*", false) }},
			{Name: "another subject", Change: apply(NewPolicy("x", "p", Subject("pod=a"), DenyIngress())), Want: func(r *Reachability) { r.ExpectAllIngress("x/a", false) }},
			{Name: "another direction", Change: apply(NewPolicy("x", "p", Subject("pod=a"), DenyEgress())), Want: func(r *Reachability) { r.ExpectAllEgress("x/a", false) }},
		},
	},
	{
		Name: "a policy is deleted and comes back", Statements: np("NP-53"),
		Steps: []Step{
			{Name: "deny", Change: apply(NewPolicy("x", "deny", DenyIngress(), DenyEgress())), Want: closed("x")},
			{Name: "deleted", Change: withdraw("x/deny")},
			{Name: "back", Change: apply(NewPolicy("x", "deny", DenyIngress(), DenyEgress())), Want: closed("x")},
			{Name: "deleted again", Change: withdraw("x/deny")},
		},
	},
	{
		Name: "a namespace is labelled and is a peer", Statements: np("NP-14", "NP-53"),
		Steps: []Step{
			{Name: "before", Change: apply(NewPolicy("x", "team", Subject("pod=a"), Ingress(From(Namespaces("team=red"))))), Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
			}},
			{Name: "labelled", Change: func(s *State) { s.LabelNamespace("y", "team=red") }, Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
				r.ExpectPeer("y/*", "x/a", true)
			}},
			{Name: "the label moves", Change: func(s *State) {
				s.LabelNamespace("y", "team-")
				s.LabelNamespace("z", "team=red")
			}, Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
				r.ExpectPeer("z/*", "x/a", true)
			}},
		},
	},
	{
		Name: "a pod is labelled and is a peer", Statements: np("NP-53"),
		Steps: []Step{
			{Name: "before", Change: apply(NewPolicy("x", "front", Subject("pod=a"), Ingress(From(Pods("tier=front").InNamespaces(""))))), Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
			}},
			{Name: "labelled", Change: func(s *State) { s.LabelPod("y/b", "tier=front") }, Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
				r.ExpectPeer("y/b", "x/a", true)
			}},
			{Name: "another value", Change: func(s *State) { s.LabelPod("y/b", "tier=back") }, Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
			}},
		},
	},
	{
		Name: "a pod is labelled and is a subject", Statements: np("NP-1", "NP-53"),
		Steps: []Step{
			{Name: "before", Change: apply(NewPolicy("x", "target", Subject("target=yes"), DenyIngress(), DenyEgress()))},
			{Name: "labelled", Change: func(s *State) { s.LabelPod("x/a", "target=yes") }, Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
				r.ExpectAllEgress("x/a", false)
			}},
			{Name: "no longer", Change: func(s *State) { s.LabelPod("x/a", "target-") }},
		},
	},
	{
		Name: "labels, pods and policies change all the time", Statements: np("NP-53", "NP-54"),
		Steps: []Step{{
			Change: apply(
				NewPolicy("x", "from-y", Subject("pod=a"), Ingress(From(Namespaces("ns=y")), At(TCP(80), UDP(81)))),
				NewPolicy("z", "deny-out", Subject("pod=b"), DenyEgress())),
			Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
				r.For(TCP(80), UDP(81)).ExpectPeer("y/*", "x/a", true)
				r.ExpectAllEgress("z/b", false)
			},
			Churn: func(s *State, round int) {
				s.LabelPod("x/a", fmt.Sprintf("round=%d", round))
				s.LabelPod("y/b", fmt.Sprintf("round=%d", round))
				s.LabelNamespace("y", fmt.Sprintf("round=%d", round))
				s.Apply(
					// Neither policy changes which connections are allowed.
					NewPolicy("x", "other", Subject("pod=a"), Ingress(From(Pods(fmt.Sprintf("round=%d", round)).InNamespaces("ns=w")))),
					NewPolicy("z", fmt.Sprintf("more-%d", round%3), Subject("pod=b"), Egress(To(Pods("pod=none")))))
			},
		}},
	},
}

// closed expects that nothing enters or leaves a namespace.
func closed(namespace string) func(*Reachability) {
	return func(r *Reachability) {
		r.ExpectAllIngress(namespace+"/*", false)
		r.ExpectAllEgress(namespace+"/*", false)
	}
}
