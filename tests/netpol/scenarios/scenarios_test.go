package scenarios_test

import (
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
	"sigs.k8s.io/kube-network-policies/tests/netpol/simulated"
)

func TestSimulated(t *testing.T) {
	netpol.Runner{Backend: simulated.New(simulated.Compiled)}.Run(t, scenarios.All()...)
}

func TestSimulatedAmongManyRules(t *testing.T) {
	netpol.Runner{Backend: simulated.New(simulated.CompiledLong)}.Run(t, scenarios.All()...)
}

func TestNamesAreUnique(t *testing.T) {
	seen := make(map[string]bool)
	for _, scenario := range scenarios.All() {
		if seen[scenario.Name] || scenario.Name == "" || len(scenario.Steps) == 0 || len(scenario.Statements) == 0 {
			t.Errorf("%q: twice, or without name, steps or statements", scenario.Name)
		}
		seen[scenario.Name] = true
	}
}

func TestOracle(t *testing.T) {
	netpol.Runner{Backend: simulated.New(simulated.Oracle)}.Run(t, scenarios.All()...)
}
