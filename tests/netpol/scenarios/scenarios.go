// Package scenarios is what NetworkPolicy and administrators' policies must do, each
// behaviour with the whole truth table. It holds for every implementation of the
// API: where the API leaves something open, the scenario says so and holds what
// docs/semantics.md chooses.
package scenarios

import (
	"slices"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// All returns every scenario. Their names are unique.
func All() []netpol.Scenario {
	return slices.Concat(defaults, selectors, portRules, namedPorts, blocks, stacked, updates, events, lives, special, families,
		adminTiers, clusterTiers, bothVersions, adminPeers, adminPorts, adminServices, adminUpdates, adminFaults)
}

// holds is a scenario of one step: these policies, and what they mean.
func holds(name string, statements []string, policies []netpol.Policy, want func(*netpol.Reachability)) netpol.Scenario {
	return netpol.Scenario{Name: name, Statements: statements, Steps: []netpol.Step{{Change: apply(policies...), Want: want}}}
}

// with returns the scenario on another model.
func with(model netpol.Model, scenario netpol.Scenario) netpol.Scenario {
	scenario.Model = model
	return scenario
}

// apply is a change that adds or replaces policies.
func apply(policies ...netpol.Policy) func(*netpol.State) {
	return func(s *netpol.State) { s.Apply(policies...) }
}

// withdraw is a change that deletes policies.
func withdraw(names ...string) func(*netpol.State) {
	return func(s *netpol.State) { s.Withdraw(names...) }
}

// np lists statements, and policies those of a scenario.
func np(numbers ...string) []string { return numbers }

func policies(p ...netpol.Policy) []netpol.Policy { return p }
