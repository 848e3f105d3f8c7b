// Package scenarios specifies what NetworkPolicy and administrators' policies must do, each
// behaviour with complete truth tables. It applies to every implementation of the APIs.
// Where an API leaves something open, the scenario says so and expects what
// docs/semantics.md of kube-network-policies chooses.
package scenarios

import (
	"slices"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// All returns every scenario. Their names are unique.
func All() []netpol.Scenario {
	return slices.Concat(defaults, selectors, portRules, namedPorts, blocks, stacked, updates, events, lives, special, families,
		adminTiers, clusterTiers, bothVersions, adminPeers, adminPorts, adminServices, adminUpdates, adminFaults, proposals)
}

// holds returns a scenario with one step that applies policies.
func holds(name string, statements []string, policies []netpol.Policy, want func(*netpol.Reachability)) netpol.Scenario {
	return netpol.Scenario{Name: name, Statements: statements, Steps: []netpol.Step{{Change: apply(policies...), Want: want}}}
}

// onModel returns the scenario on another model.
func onModel(model netpol.Model, scenario netpol.Scenario) netpol.Scenario {
	scenario.Model = model
	return scenario
}

// apply returns a change that adds or replaces policies.
func apply(policies ...netpol.Policy) func(*netpol.State) {
	return func(s *netpol.State) { s.Apply(policies...) }
}

// withdraw returns a change that deletes policies.
func withdraw(names ...string) func(*netpol.State) {
	return func(s *netpol.State) { s.Withdraw(names...) }
}

// np makes lists of statements more readable, policies those of policies.
func np(numbers ...string) []string { return numbers }

func policies(p ...netpol.Policy) []netpol.Policy { return p }
