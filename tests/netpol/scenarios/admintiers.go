package scenarios

import (
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// adminTiers are about the order of tiers and priorities.
var adminTiers = inBoth(func(v version) []Scenario {
	return []Scenario{
		holds("Admin denies what NetworkPolicy allows", np("CN-1", "CN-3"),
			policies(NewPolicy("x", "open", Ingress()), v.admin("deny", 10, onX, DenyFrom(podsOfY))),
			keepOut("y/*", "x/*")),
		holds("Admin allows what NetworkPolicy denies", np("CN-1", "CN-3"),
			policies(NewPolicy("x", "deny", DenyIngress()), v.admin("allow", 10, onX, AllowFrom(podsOfY).At(TCP(80)))),
			func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.For(TCP(80)).ExpectPeer("y/*", "x/*", true)
			}),
		holds("an Allow isolates no pod", np("CN-6"),
			policies(v.admin("allow", 10, onX, AllowFrom(podsOfY), AllowTo(podsOfY))), nil),
		holds("rules of one direction do not apply to the other", np("CN-6"),
			policies(v.admin("in", 10, onX, DenyFrom(anyPod)), v.admin("out", 5, onX, AllowTo(anyPod))),
			func(r *Reachability) { r.ExpectAllIngress("x/*", false) }),
		holds("rules are asked in order", np("CN-2"),
			policies(v.admin("order", 10, onX, DenyFrom(Pods("pod=a").InNamespaces("ns=y")), AllowFrom(podsOfY), DenyFrom(anyPod))),
			func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.ExpectPeer("y/[bc]", "x/*", true)
			}),
		holds("a smaller number is asked first, as a number", np("CN-2"),
			policies(v.admin("a", 1000, onX, DenyFrom(anyPod)), v.admin("b", 90, onX, AllowFrom(podsOfY)), v.admin("c", 100, onX, DenyFrom(podsOfY))),
			func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.ExpectPeer("y/*", "x/*", true)
			}),
		holds("of equal numbers the first name decides", np("CN-7"),
			policies(v.admin("b", 10, onX, DenyFrom(anyPod)), v.admin("a", 10, onX, AllowFrom(podsOfY)), v.admin("c", 10, onX, DenyFrom(podsOfY))),
			func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.ExpectPeer("y/*", "x/*", true)
			}),
		holds("Pass leaves it to NetworkPolicy", np("CN-4"),
			policies(
				v.admin("pass", 10, onX, PassFrom(podsOfY)),
				v.admin("deny", 20, onX, DenyFrom(anyPod)),
				NewPolicy("x", "y-on-80", Ingress(From(podsOfY), At(TCP(80))))),
			func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.For(TCP(80)).ExpectPeer("y/*", "x/*", true)
			}),
		holds("Pass on some ports, to NetworkPolicy out of egress", np("CN-4", "CN-11"),
			policies(
				v.admin("pass", 10, onX, PassTo(podsOfY).At(TCP(80), UDP(81)), DenyTo(anyPod)),
				NewPolicy("x", "out", Egress(To(Pods("pod=b").InNamespaces("ns=y"))))),
			func(r *Reachability) {
				r.ExpectAllEgress("x/*", false)
				r.For(TCP(80), UDP(81)).ExpectPeer("x/*", "y/b", true)
			}),
		holds("Pass without NetworkPolicy goes on to Baseline", np("CN-4"),
			policies(
				v.admin("pass", 10, onX, PassFrom(anyPod)),
				v.admin("allow", 20, onX, AllowFrom(anyPod)),
				v.baseline(onX, DenyFrom(podsOfY))),
			keepOut("y/*", "x/*")),
		holds("Pass without anything behind it is allowed", np("CN-4"),
			policies(v.admin("pass", 10, onX, PassFrom(podsOfY)), v.admin("deny", 20, onX, DenyFrom(anyPod))),
			func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.ExpectPeer("y/*", "x/*", true)
			}),
		holds("Baseline denies by default, NetworkPolicy opens", np("CN-1", "CN-5"),
			policies(v.baseline(everyone, DenyFrom(anyPod)), NewPolicy("x", "from-y", Ingress(From(podsOfY)))),
			func(r *Reachability) {
				r.ExpectAll(false)
				r.ExpectPeer("y/*", "x/*", true)
			}),
		holds("Baseline allows some and denies the rest", np("CN-2"),
			policies(v.baseline(everyone, AllowTo(podsOfX).At(TCP(80)), DenyTo(anyPod))),
			func(r *Reachability) {
				r.ExpectAll(false)
				r.For(TCP(80)).ExpectAllIngress("x/*", true)
			}),
		holds("Baseline cannot allow what NetworkPolicy denies", np("CN-5"),
			policies(v.baseline(everyone, AllowFrom(anyPod)), NewPolicy("x", "from-y", Ingress(From(podsOfY)))),
			func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.ExpectPeer("y/*", "x/*", true)
			}),
		holds("Baseline is asked in the direction that NetworkPolicy leaves open", np("CN-5"),
			policies(v.baseline(onX, DenyFrom(anyPod), DenyTo(anyPod)), NewPolicy("x", "out", Egress(To(podsOfY)))),
			func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.ExpectAllEgress("x/*", false)
				r.ExpectPeer("x/*", "y/*", true)
			}),
		holds("an Allow of Admin is not taken back by Baseline", np("CN-1"),
			policies(v.admin("allow", 10, onX, AllowFrom(podsOfY)), v.baseline(onX, DenyFrom(anyPod))),
			func(r *Reachability) {
				r.ExpectAllIngress("x/*", false)
				r.ExpectPeer("y/*", "x/*", true)
			}),
		{
			Name: "an Allow in one direction does not exempt from the other", Statements: np("CN-3"),
			Steps: []Step{
				{Name: "allowed out, denied in", Change: apply(
					v.admin("out", 1, onX, AllowTo(podsOfY)), v.admin("in", 2, On(podsOfY), DenyFrom(podsOfX))), Want: keepOut("x/*", "y/*")},
				{Name: "allowed in, denied out", Change: apply(
					v.admin("out", 2, onX, DenyTo(podsOfY)), v.admin("in", 1, On(podsOfY), AllowFrom(podsOfX))), Want: keepOut("x/*", "y/*")},
				{Name: "allowed out, closed by NetworkPolicy", Change: apply(
					v.admin("out", 1, onX, AllowTo(podsOfY)), v.admin("in", 2, On(podsOfY), PassFrom(podsOfX)), NewPolicy("y", "deny", DenyIngress())), Want: func(r *Reachability) {
					r.ExpectAllIngress("y/*", false)
				}},
			},
		},
	}
})

// clusterTiers are what only ClusterNetworkPolicy can express.
var clusterTiers = needingAll([]Scenario{
	holds("Pass out of Baseline is allowed", np("CN-4"),
		policies(
			NewClusterNetworkPolicy("pass", v1beta1.BaselineTier, 10, onX, PassFrom(podsOfY)),
			NewClusterNetworkPolicy("deny", v1beta1.BaselineTier, 20, onX, DenyFrom(anyPod))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectPeer("y/*", "x/*", true)
		}),
	holds("a number counts within its tier", np("CN-1", "CN-2"),
		policies(
			NewClusterNetworkPolicy("first", v1beta1.BaselineTier, 0, onX, AllowFrom(podsOfY)),
			NewClusterNetworkPolicy("last", v1beta1.AdminTier, 1000, onX, DenyFrom(podsOfY))),
		keepOut("y/*", "x/*")),
	holds("a smaller number is asked first in Baseline, too", np("CN-2"),
		policies(
			NewClusterNetworkPolicy("a", v1beta1.BaselineTier, 20, onX, DenyFrom(anyPod)),
			NewClusterNetworkPolicy("b", v1beta1.BaselineTier, 3, onX, AllowFrom(podsOfY))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectPeer("y/*", "x/*", true)
		}),
	{
		Name: "a policy moves from one tier to the other", Statements: np("CN-1", "CN-5"),
		Steps: []Step{
			{Name: "Baseline, behind NetworkPolicy", Change: apply(
				NewPolicy("x", "open", Ingress()), NewClusterNetworkPolicy("moves", v1beta1.BaselineTier, 1, onX, DenyFrom(podsOfY)))},
			{Name: "Admin, before it", Change: apply(NewClusterNetworkPolicy("moves", v1beta1.AdminTier, 1, onX, DenyFrom(podsOfY))), Want: keepOut("y/*", "x/*")},
			{Name: "Baseline again", Change: apply(NewClusterNetworkPolicy("moves", v1beta1.BaselineTier, 1, onX, DenyFrom(podsOfY)))},
		},
	},
}, ClusterNetworkPolicies)

// bothVersions have policies of both versions at the same time, which share the tiers.
var bothVersions = needingAll([]Scenario{
	holds("the number decides over both kinds", np("CN-2", "CN-8"),
		policies(
			NewAdminNetworkPolicy("a", 20, onX, DenyFrom(anyPod)),
			NewClusterNetworkPolicy("b", v1beta1.AdminTier, 10, onX, AllowFrom(podsOfY)),
			NewAdminNetworkPolicy("c", 5, onX, DenyFrom(Pods("pod=a").InNamespaces("ns=y")))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectPeer("y/[bc]", "x/*", true)
		}),
	holds("of equal numbers AdminNetworkPolicy decides, whatever the names", np("CN-7", "CN-8"),
		policies(
			NewClusterNetworkPolicy("a", v1beta1.AdminTier, 10, onX, DenyFrom(anyPod)),
			NewAdminNetworkPolicy("b", 10, onX, AllowFrom(podsOfY))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectPeer("y/*", "x/*", true)
		}),
	holds("Pass of one kind leaves out the other, too", np("CN-4", "CN-8"),
		policies(
			NewAdminNetworkPolicy("pass", 10, onX, PassFrom(podsOfY)),
			NewClusterNetworkPolicy("deny", v1beta1.AdminTier, 20, onX, DenyFrom(anyPod))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectPeer("y/*", "x/*", true)
		}),
	holds("BaselineAdminNetworkPolicy is asked last", np("CN-8"),
		policies(
			NewBaselineAdminNetworkPolicy(onX, DenyFrom(anyPod)),
			NewClusterNetworkPolicy("z", v1beta1.BaselineTier, 1000, onX, AllowFrom(podsOfY), PassFrom(Pods("pod=a").InNamespaces("ns=z")))),
		func(r *Reachability) {
			r.ExpectAllIngress("x/*", false)
			r.ExpectPeer("y/*", "x/*", true)
			r.ExpectPeer("z/a", "x/*", true)
		}),
}, AdminNetworkPolicies, ClusterNetworkPolicies)
