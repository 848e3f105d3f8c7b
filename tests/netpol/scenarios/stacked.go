package scenarios

import (
	"fmt"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// stacked are about several policies at a time.
var stacked = []Scenario{
	{
		Name: "an allow-all policy outweighs other policies for ingress", Statements: np("NP-2"),
		Steps: []Step{
			{Name: "one pod may", Change: apply(NewPolicy("x", "from-b", Subject("pod=a"), Ingress(From(Pods("pod=b"))))), Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
				r.ExpectPeer("x/b", "x/a", true)
			}},
			{Name: "all may", Change: apply(NewPolicy("x", "all", Ingress()))},
			{Name: "one pod may again", Change: withdraw("x/all"), Want: func(r *Reachability) {
				r.ExpectAllIngress("x/a", false)
				r.ExpectPeer("x/b", "x/a", true)
			}},
		},
	},
	{
		Name: "an allow-all policy outweighs other policies for egress", Statements: np("NP-2"),
		Steps: []Step{
			{Name: "on one port", Change: apply(NewPolicy("x", "out-81", Subject("pod=a"), Egress(At(TCP(81))))), Want: func(r *Reachability) {
				r.ExpectAllEgress("x/a", false)
				r.For(TCP(81)).ExpectAllEgress("x/a", true)
			}},
			{Name: "on all", Change: apply(NewPolicy("x", "all", Egress()))},
		},
	},
	{
		Name: "policies with overlapping subjects stack", Statements: np("NP-1", "NP-2"),
		Steps: []Step{
			{
				Name: "a accepts y on 80",
				Change: apply(NewPolicy("x", "one", Subject("pod=a"), Ingress(From(Namespaces("ns=y")), At(TCP(80)))),
					NewPolicy("x", "two", Subject("pod in (a,b)"), Ingress(From(Namespaces("ns=z")), At(TCP(81))))),
				Want: func(r *Reachability) {
					r.ExpectAllIngress("x/[ab]", false)
					r.For(TCP(80)).ExpectPeer("y/*", "x/a", true)
					r.For(TCP(81)).ExpectPeer("z/*", "x/[ab]", true)
				},
			}, {
				Name:   "and all of x accepts c of anywhere on UDP",
				Change: apply(NewPolicy("x", "three", Ingress(From(Pods("pod=c").InNamespaces("")), At(UDP(0))))),
				Want: func(r *Reachability) {
					r.ExpectAllIngress("x/*", false)
					r.For(TCP(80)).ExpectPeer("y/*", "x/a", true)
					r.For(TCP(81)).ExpectPeer("z/*", "x/[ab]", true)
					r.For(UDP(0)).ExpectPeer("*/c", "x/*", true)
				},
			},
		},
	},
	{
		Name: "ten policies on one pod add up", Statements: np("NP-2"),
		Steps: []Step{
			{Name: "each allows one pod, the tenth none", Change: tenPolicies, Want: wantTen},
			{Name: "without the seventh", Change: withdraw("x/p6"), Want: func(r *Reachability) {
				wantTen(r)
				r.ExpectPeer("z/a", "x/a", false)
			}},
		},
	},
	{
		Name: "a hundred policies on one pod add up", Statements: np("NP-2"),
		Steps: []Step{
			{Name: "one of them allows", Change: hundredPolicies, Want: onlyYA},
			{Name: "without it", Change: withdraw("x/p57"), Want: func(r *Reachability) { r.ExpectAllIngress("x/a", false) }},
		},
	},
	holds("policies of both namespaces must agree", np("NP-3"),
		policies(
			NewPolicy("x", "out", Egress(To(Namespaces("ns=y")), At(TCP(80), UDP(80)))),
			NewPolicy("y", "in", Ingress(From(Namespaces("ns=x")), At(TCP(80), TCP(81))))),
		func(r *Reachability) {
			r.ExpectAllEgress("x/*", false)
			r.ExpectAllIngress("y/*", false)
			r.For(TCP(80)).ExpectPeer("x/*", "y/*", true)
		}),
	holds("ingress of one policy and egress of another on one pod", np("NP-1", "NP-2"),
		policies(
			NewPolicy("x", "in", Subject("pod=a"), Ingress(From(Pods("pod=b")))),
			NewPolicy("x", "out", Subject("pod=a"), Egress(To(Pods("pod=c"))))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/a", false)
			r.ExpectAllEgress("x/a", false)
			r.ExpectPeer("x/b", "x/a", true)
			r.ExpectPeer("x/a", "x/c", true)
		}),
}

// tenPolicies applies seven policies that each allow one pod to reach x/a, and three that
// allow nothing there.
func tenPolicies(s *State) {
	for i, namespace := range []string{"x", "y", "z"} {
		for j, pod := range []string{"a", "b", "c"} {
			if pod == "c" && namespace != "x" {
				continue // y/c and z/c stay denied
			}
			s.Apply(NewPolicy("x", fmt.Sprintf("p%d", 3*i+j), Subject("pod=a"),
				Ingress(From(Pods("pod="+pod).InNamespaces("ns="+namespace)))))
		}
	}
	s.Apply(
		NewPolicy("x", "deny", DenyIngress()),
		NewPolicy("x", "udp", Subject("pod=b"), Ingress(At(UDP(0)))),
		NewPolicy("x", "none", Subject("pod=a"), Ingress(From(Pods("pod=none")))))
}

// hundredPolicies applies policies for x/a, one of which allows y/a.
func hundredPolicies(s *State) {
	for i := range 100 {
		peer := Pods(fmt.Sprintf("pod=none-%d", i))
		if i == 57 {
			peer = Pods("pod=a").InNamespaces("ns=y")
		}
		s.Apply(NewPolicy("x", fmt.Sprintf("p%d", i), Subject("pod=a"), Ingress(From(peer))))
	}
}

func wantTen(r *Reachability) {
	r.ExpectAllIngress("x/*", false)
	r.ExpectPeer("*/[ab]", "x/a", true)
	r.ExpectPeer("x/c", "x/a", true)
	r.For(UDP(0)).ExpectAllIngress("x/b", true)
}
