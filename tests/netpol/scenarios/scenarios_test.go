package scenarios

import (
	"os"
	"strings"
	"testing"
)

func TestScenariosAreComplete(t *testing.T) {
	seen := make(map[string]bool)
	for _, scenario := range All() {
		if seen[scenario.Name] || scenario.Name == "" || len(scenario.Steps) == 0 || len(scenario.Statements) == 0 {
			t.Errorf("%q: not unique, or without a name, steps or statements", scenario.Name)
		}
		seen[scenario.Name] = true
	}
}

// TestKubernetesSpecsHaveScenarios: each spec in the table names scenarios that exist. That the
// table has every spec is tested where the source of Kubernetes is, in tests/cluster/integration.
func TestKubernetesSpecsHaveScenarios(t *testing.T) {
	table, err := os.ReadFile("testdata/kubernetes-specs.txt")
	if err != nil {
		t.Fatal(err)
	}
	exists := make(map[string]bool)
	for _, scenario := range All() {
		exists[scenario.Name] = true
	}

	specs := make(map[string]int) // how many lines are below each
	spec := ""
	for line := range strings.Lines(string(table)) {
		name, below := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "\t")
		switch {
		case below && !exists[name] && !strings.HasPrefix(name, "- "):
			t.Errorf("%q: no scenario %q", spec, name)
		case below:
			specs[spec]++
		case name != "" && !strings.HasPrefix(name, "#"):
			spec = name
			specs[spec] += 0
		}
	}
	for spec, n := range specs {
		if n == 0 {
			t.Errorf("%q: neither a scenario nor a reason", spec)
		}
	}
}
