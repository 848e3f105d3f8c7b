// Package e2e is an example of a test binary that plays the scenarios of tests/netpol as Ginkgo
// specs, here on the evaluator of this project in process.
//
//	go test -c -o e2e.test . && ./e2e.test -ginkgo.focus='default deny' -ginkgo.label-filter=NP-6
package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"

	"sigs.k8s.io/kube-network-policies/tests/model/simulated"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
	"sigs.k8s.io/kube-network-policies/tests/netpol/specs"
)

// A test binary for live clusters has cluster.New in this place.
var _ = specs.Describe("[sig-network] network policies", func(context.Context) (netpol.Runner, error) {
	backends++
	return netpol.Runner{Backend: simulated.New(evaluator())}, nil
}, scenarios.All(), ginkgo.Label("Feature:NetworkPolicy"))

// backends counts how often the container has made a backend.
var backends int

// evaluator is this project's, or that of simulated.Naive which the environment names.
func evaluator() simulated.Evaluator {
	if name := os.Getenv(naive); name != "" {
		return simulated.Naive[name]
	}
	return simulated.Compiled
}

const naive = "NAIVE_EVALUATOR"

func TestE2E(t *testing.T) {
	ginkgo.RunSpecs(t, "network policies")

	if backends != 1 {
		t.Errorf("%d backends were made for all specs", backends)
	}
}

// A provider that is wrong fails the specs whose tables differ, and no others.
func TestWrongTablesFail(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestE2E$", "-ginkgo.no-color", "-ginkgo.json-report="+file,
		"-ginkgo.focus=Baseline|default deny", "-ginkgo.label-filter=Feature:NetworkPolicy")
	cmd.Env = append(os.Environ(), naive+"=there is no Baseline")
	output, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("the program passed:\n%s", output)
	}

	var reports []types.Report
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &reports)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}

	states := map[types.SpecState]int{}
	for _, spec := range reports[0].SpecReports {
		states[spec.State]++
		if spec.State == types.SpecStateFailed && (!strings.Contains(spec.LeafNodeText, "Baseline") || !strings.Contains(spec.Failure.Message, "should be")) {
			t.Errorf("%s failed: %s", spec.LeafNodeText, spec.Failure.Message)
		}
	}
	if states[types.SpecStateFailed] == 0 || states[types.SpecStatePassed] == 0 {
		t.Errorf("got %v\n%s", states, output)
	}
}
