package scenarios

import (
	"fmt"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// adminUpdates are about changes of administrators' policies and of the pods that they
// select.
var adminUpdates = inBoth(func(v version) []Scenario {
	nameOf := func(name string) string { return PolicyName(v.admin(name, 0)) }
	return []Scenario{
		{
			Name: "priorities change", Statements: np("CN-2", "NP-53"),
			Steps: []Step{
				{Name: "the Deny is last", Change: apply(v.admin("deny", 20, onX, DenyFrom(podsOfY)), v.admin("allow", 10, onX, AllowFrom(podsOfY)))},
				{Name: "the Deny is first", Change: apply(v.admin("deny", 5, onX, DenyFrom(podsOfY))), Want: keepOut("y/*", "x/*")},
				{Name: "the Allow goes before it", Change: apply(v.admin("allow", 0, onX, AllowFrom(podsOfY)))},
				{Name: "both are last", Change: apply(v.admin("allow", 1000, onX, AllowFrom(podsOfY)), v.admin("deny", 1000, onX, DenyFrom(podsOfY)))},
			},
		},
		{
			Name: "an action changes", Statements: np("CN-3", "CN-4", "NP-53"),
			Steps: []Step{
				{Name: "Deny", Change: apply(NewPolicy("x", "tcp", Ingress(At(TCP(0)))), v.admin("p", 10, onX, DenyFrom(podsOfY))), Want: func(r *Reachability) {
					r.For(UDP(0)).ExpectAllIngress("x/*", false)
					r.ExpectPeer("y/*", "x/*", false)
				}},
				{Name: "Allow", Change: apply(v.admin("p", 10, onX, AllowFrom(podsOfY))), Want: func(r *Reachability) {
					r.For(UDP(0)).ExpectAllIngress("x/*", false)
					r.ExpectPeer("y/*", "x/*", true)
				}},
				{Name: "Pass", Change: apply(v.admin("p", 10, onX, PassFrom(podsOfY))), Want: func(r *Reachability) {
					r.For(UDP(0)).ExpectAllIngress("x/*", false)
				}},
			},
		},
		{
			Name: "administrators' policies are deleted and come back", Statements: np("NP-53"),
			Steps: []Step{
				{Name: "both tiers", Change: apply(v.admin("deny", 10, onX, DenyFrom(podsOfY)), v.baseline(everyone, DenyTo(Namespaces("ns=z")))), Want: func(r *Reachability) {
					r.ExpectPeer("y/*", "x/*", false)
					r.ExpectAllIngress("z/*", false)
				}},
				{Name: "Baseline alone", Change: withdraw(nameOf("deny")), Want: func(r *Reachability) { r.ExpectAllIngress("z/*", false) }},
				{Name: "Admin alone", Change: func(s *State) {
					s.Withdraw(PolicyName(v.baseline()))
					s.Apply(v.admin("deny", 10, onX, DenyFrom(podsOfY)))
				}, Want: keepOut("y/*", "x/*")},
				{Name: "none", Change: withdraw(nameOf("deny"))},
			},
		},
		{
			Name: "labels decide which pods are subjects", Statements: np("CN-9", "NP-53"),
			Steps: []Step{
				{Name: "no pod yet", Change: apply(
					v.admin("pods", 10, On(Pods("role=sealed").InNamespaces("ns")), DenyTo(anyPod)),
					v.admin("namespaces", 20, On(Namespaces("ns,sealed=yes")), DenyFrom(anyPod)))},
				{Name: "a pod and a namespace", Change: func(s *State) {
					s.LabelPod("x/a", "role=sealed")
					s.LabelNamespace("z", "sealed=yes")
				}, Want: func(r *Reachability) {
					r.ExpectAllEgress("x/a", false)
					r.ExpectAllIngress("z/*", false)
				}},
				{Name: "other pods", Change: func(s *State) {
					s.LabelPod("x/a", "role-")
					s.LabelPod("y/b", "role=sealed")
					s.LabelNamespace("z", "sealed=no")
				}, Want: func(r *Reachability) { r.ExpectAllEgress("y/b", false) }},
			},
		},
		{
			Name: "labels decide which pods are peers", Statements: np("CN-9", "NP-53"),
			Steps: []Step{
				{Name: "no pod yet", Change: apply(v.admin("guests", 10, onX, DenyFrom(Pods("guest=yes"), Namespaces("guests=yes"))))},
				{Name: "a pod and a namespace", Change: func(s *State) {
					s.LabelPod("y/b", "guest=yes")
					s.LabelNamespace("z", "guests=yes")
				}, Want: func(r *Reachability) {
					r.ExpectPeer("y/b", "x/*", false)
					r.ExpectPeer("z/*", "x/*", false)
				}},
				{Name: "no longer", Change: func(s *State) {
					s.LabelPod("y/b", "guest-")
					s.LabelNamespace("z", "guests-")
				}},
			},
		},
		{
			Name: "a new pod meets administrators' policies", Statements: np("NP-53", "NP-54"),
			Steps: []Step{
				{Name: "policies", Change: apply(v.admin("d", 10, On(Pods("pod=d").InNamespaces("ns")), DenyFrom(podsOfY)), v.baseline(onX, DenyFrom(Pods("pod=d").InNamespaces("ns=y"))))},
				{Name: "a server", Change: func(s *State) { s.AddPod(NewPod("x", "d", "node-1", s.Ports, "pod=d")) }, Want: keepOut("y/*", "x/d")},
				{Name: "a client", Change: func(s *State) { s.AddPod(NewPod("y", "d", "node-2", s.Ports, "pod=d")) }, Want: func(r *Reachability) {
					r.ExpectPeer("y/*", "[xy]/d", false)
					r.ExpectPeer("y/d", "x/*", false)
				}},
				{Name: "the server goes", Change: func(s *State) { s.DeletePod("x/d") }, Want: func(r *Reachability) {
					r.ExpectPeer("y/*", "y/d", false)
					r.ExpectPeer("y/d", "x/*", false)
				}},
			},
		},
		{
			Name: "priorities, labels and policies change all the time", Statements: np("CN-2", "NP-53", "NP-54"),
			Steps: []Step{{
				Change: apply(
					v.admin("front", 10, onX, AllowFrom(podsOfY).At(TCP(80)), DenyFrom(podsOfY)),
					v.baseline(On(Namespaces("ns=z")), DenyTo(podsOfX))),
				Want: func(r *Reachability) {
					r.ExpectPeer("y/*", "x/*", false)
					r.For(TCP(80)).ExpectPeer("y/*", "x/*", true)
					r.ExpectPeer("z/*", "x/*", false)
				},
				Churn: func(s *State, round int) {
					s.LabelPod("y/b", fmt.Sprintf("round=%d", round))
					s.LabelNamespace("y", fmt.Sprintf("round=%d", round))
					s.Apply(
						// Neither policy changes which connections are allowed.
						v.admin("front", int32(10+round%5), onX, AllowFrom(podsOfY).At(TCP(80)), DenyFrom(podsOfY)),
						v.admin(fmt.Sprintf("more-%d", round%3), int32(round), onX, DenyFrom(Namespaces("ns=w")), PassFrom(Pods("round=none"))))
				},
			}},
		},
	}
})
