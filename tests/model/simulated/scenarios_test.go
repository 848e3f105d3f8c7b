package simulated_test

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/model/simulated"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
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

func TestStatementsAreThoseOfTheDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../../docs/semantics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, scenario := range scenarios.All() {
		for _, statement := range scenario.Statements {
			if !strings.Contains(string(text), "\n| "+statement+" |") {
				t.Errorf("%s: docs/semantics.md has no %s", scenario.Name, statement)
			}
		}
	}
}

func TestOracle(t *testing.T) {
	netpol.Runner{Backend: simulated.New(simulated.Oracle)}.Run(t, scenarios.All()...)
}

// TestNaiveEvaluatorsAreNoticed: scenarios that a wrong evaluator passes test nothing.
func TestNaiveEvaluatorsAreNoticed(t *testing.T) {
	for name, evaluator := range simulated.Naive {
		t.Run(name, func(t *testing.T) {
			runner := netpol.Runner{Backend: simulated.New(evaluator)}
			var noticed []string
			for _, scenario := range scenarios.All() {
				if result := runner.Play(t.Context(), scenario); !result.OK() {
					noticed = append(noticed, scenario.Name)
				}
			}
			if len(noticed) == 0 {
				t.Error("no scenario notices")
			}
			t.Logf("%d scenarios notice: %q", len(noticed), noticed)
		})
	}
}
