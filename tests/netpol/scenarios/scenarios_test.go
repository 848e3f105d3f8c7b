package scenarios

import "testing"

func TestScenariosAreComplete(t *testing.T) {
	seen := make(map[string]bool)
	for _, scenario := range All() {
		if seen[scenario.Name] || scenario.Name == "" || len(scenario.Steps) == 0 || len(scenario.Statements) == 0 {
			t.Errorf("%q: not unique, or without a name, steps or statements", scenario.Name)
		}
		seen[scenario.Name] = true
	}
}
