package netpol_test

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "sigs.k8s.io/kube-network-policies"

// TestDependencies keeps the module usable for every provider: none of its packages depends
// on an implementation, and the DSL and its scenarios depend only on API types.
func TestDependencies(t *testing.T) {
	for _, c := range []struct {
		packages  string
		forbidden []string
	}{
		{"./...", []string{module + "/pkg", "github.com/florianl/", "github.com/mdlayher/", "github.com/prometheus/", "sigs.k8s.io/knftables"}},
		{".", []string{module + "/tests/netpol/", "k8s.io/client-go"}},
		{"./scenarios", []string{"k8s.io/client-go"}},
	} {
		t.Run(c.packages, func(t *testing.T) {
			output, err := exec.Command("go", "list", "-deps", c.packages).Output()
			if err != nil {
				t.Fatal(err)
			}
			deps := strings.Fields(string(output))
			if len(deps) < 50 {
				t.Fatalf("%d dependencies: the list is incomplete", len(deps))
			}
			for _, dep := range deps {
				if strings.HasPrefix(dep, module) && !strings.HasPrefix(dep, module+"/tests/netpol") {
					t.Errorf("depends on %s, a package of another module", dep)
				}
				for _, forbidden := range c.forbidden {
					if strings.HasPrefix(dep, forbidden) {
						t.Errorf("depends on %s", dep)
					}
				}
			}
		})
	}
}
