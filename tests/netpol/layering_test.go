package netpol

import (
	"os/exec"
	"strings"
	"testing"
)

// TestImportsNothingOfTheAgent keeps the package and the scenarios usable by every
// provider: standard library, API types, and nothing that talks to a cluster.
func TestImportsNothingOfTheAgent(t *testing.T) {
	const module = "sigs.k8s.io/kube-network-policies/"
	const own = module + "tests/netpol"
	output, err := exec.Command("go", "list", "-deps", own, own+"/scenarios").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(output))
	if len(deps) < 50 {
		t.Fatalf("%d dependencies: the list is wrong", len(deps))
	}
	for _, dep := range deps {
		if strings.HasPrefix(dep, module) && dep != own && dep != own+"/scenarios" {
			t.Errorf("reaches %s", dep)
		}
		for _, forbidden := range []string{"k8s.io/client-go", "github.com/prometheus/", "sigs.k8s.io/knftables", "github.com/florianl/"} {
			if strings.HasPrefix(dep, forbidden) {
				t.Errorf("reaches %s", dep)
			}
		}
	}
}
