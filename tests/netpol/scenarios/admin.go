package scenarios

import (
	"slices"

	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	. "sigs.k8s.io/kube-network-policies/tests/netpol"
)

// version is one version of the administrators' kinds.
type version struct {
	name     string
	feature  Feature
	admin    func(name string, priority int32, parts ...AdminPart) Policy
	baseline func(parts ...AdminPart) Policy
}

var versions = []version{
	{
		name: "v1alpha1", feature: AdminNetworkPolicies,
		admin: func(name string, priority int32, parts ...AdminPart) Policy {
			return NewAdminNetworkPolicy(name, priority, parts...)
		},
		baseline: func(parts ...AdminPart) Policy { return NewBaselineAdminNetworkPolicy(parts...) },
	}, {
		name: "v1beta1", feature: ClusterNetworkPolicies,
		admin: func(name string, priority int32, parts ...AdminPart) Policy {
			return NewClusterNetworkPolicy(name, v1beta1.AdminTier, priority, parts...)
		},
		baseline: func(parts ...AdminPart) Policy {
			return NewClusterNetworkPolicy("default", v1beta1.BaselineTier, 500, parts...)
		},
	},
}

// inBoth returns the scenarios that both versions can express, in each version.
func inBoth(build func(v version) []Scenario) []Scenario {
	var all []Scenario
	for _, v := range versions {
		for _, scenario := range build(v) {
			scenario.Name += ", " + v.name
			all = append(all, needing(scenario, v.feature))
		}
	}
	return all
}

// needing returns the scenario with further features that the backend must support.
func needing(scenario Scenario, features ...Feature) Scenario {
	scenario.Needs = slices.Concat(scenario.Needs, features)
	return scenario
}

// refusable returns the scenario for clusters that may refuse its objects.
func refusable(scenario Scenario) Scenario {
	scenario.Refusable = true
	return scenario
}

// refusableAll is refusable for many scenarios.
func refusableAll(scenarios []Scenario) []Scenario {
	for i := range scenarios {
		scenarios[i] = refusable(scenarios[i])
	}
	return scenarios
}

// needingAll is needing for many scenarios.
func needingAll(scenarios []Scenario, features ...Feature) []Scenario {
	for i := range scenarios {
		scenarios[i] = needing(scenarios[i], features...)
	}
	return scenarios
}

// Subjects and peers. Subjects are only in the model's namespaces, which all have this
// label, so no other pod of a live cluster is affected.
var (
	everyone = On(Namespaces("ns"))
	onX      = On(Namespaces("ns=x"))
	anyPod   = Namespaces("")
	podsOfX  = Namespaces("ns=x")
	podsOfY  = Namespaces("ns=y")
	world    = Networks("0.0.0.0/0", "::/0")
)

// keepOut expects that no pod reaches a namespace, neither from another namespace nor from
// the same one.
func keepOut(from, to string) func(*Reachability) {
	return func(r *Reachability) { r.ExpectPeer(from, to, false) }
}
