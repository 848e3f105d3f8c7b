package scenarios

import (
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
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
	exists := make(map[string]bool)
	for _, scenario := range All() {
		exists[scenario.Name] = true
	}

	specs := make(map[string]int)  // how many lines are below each
	named := make(map[string]bool) // below any of them
	spec := ""
	for line := range strings.Lines(kubernetesSpecs) {
		name, below := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "\t")
		switch {
		case below && !exists[name] && !strings.HasPrefix(name, "- "):
			t.Errorf("%q: no scenario %q", spec, name)
		case below:
			specs[spec]++
			if exists[name] {
				named[name] = true
			}
		case name != "" && !strings.HasPrefix(name, "#"):
			spec = name
			specs[spec] += 0
		}
	}
	profile, err := Profile("kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range profile {
		delete(named, s.Name)
	}
	if len(profile) < 40 || len(named) > 0 {
		t.Errorf("the profile has %d scenarios, and lacks %v", len(profile), named)
	}
	for spec, n := range specs {
		if n == 0 {
			t.Errorf("%q: neither a scenario nor a reason", spec)
		}
	}
}

// The profile of network-policy-api has every feature of the released kinds and no proposal.
func TestProfiles(t *testing.T) {
	profile, err := Profile("network-policy-api")
	if err != nil {
		t.Fatal(err)
	}
	needed := make(map[netpol.Feature]int)
	for _, s := range profile {
		for _, feature := range s.Needs {
			needed[feature]++
		}
	}
	if needed[netpol.AdminNetworkPolicies] == 0 || needed[netpol.ClusterNetworkPolicies] == 0 || needed[netpol.ExperimentalFields] == 0 || needed[netpol.NPEP127] > 0 {
		t.Errorf("%d scenarios need %v", len(profile), needed)
	}
	if all, err := Profile("all"); err != nil || len(all) != len(All()) {
		t.Errorf("the profile all has %d scenarios, %v", len(all), err)
	}
	if _, err := Profile("some"); err == nil || !strings.Contains(err.Error(), `"some": want one of all, kubernetes, network-policy-api`) {
		t.Errorf("got %v", err)
	}
}
