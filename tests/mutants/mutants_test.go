// Package mutants measures how strong the scenarios are: each fault of mutants.txt
// is put into the evaluator or the compiler, and the simulated suite must notice.
// The source tree is not touched: the compiler is shown other files in place of its
// own.
package mutants

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/lab/labtest"
)

const module = "sigs.k8s.io/kube-network-policies/"

// suiteTimeout bounds one mutant: building the packages behind the fault, and the
// suite.
const suiteTimeout = 5 * time.Minute

// minMutants is how many the list must have at least.
const minMutants = 15

func TestMutants(t *testing.T) {
	if os.Getenv("MUTANTS") == "" {
		t.Skip("takes minutes; set MUTANTS=1 to run it")
	}
	groups := map[group][]mutant{}
	for _, m := range mutants(t) {
		groups[m.suite.group()] = append(groups[m.suite.group()], m)
	}
	// Tests with real packets wait most of the time, and building a mutant is mostly the work
	// of one core: the two groups run beside each other.
	for _, g := range []group{rates, packets, pure} {
		t.Run(string(g), func(t *testing.T) {
			if g != rates {
				t.Parallel()
			}
			for _, m := range groups[g] {
				t.Run(m.name, func(t *testing.T) {
					if g == pure {
						t.Parallel()
					} else {
						labtest.Need(t)
					}
					killer := run(t, m)
					if killer == "" {
						t.Fatal("no test notices it")
					}
					t.Logf("killed by %s", killer)
				})
			}
		})
	}
}

// TestMutantsApply keeps the list in step with the code, without running anything.
func TestMutantsApply(t *testing.T) {
	all := mutants(t)
	if len(all) < minMutants {
		t.Errorf("%d mutants, want %d at least", len(all), minMutants)
	}
	for _, m := range all {
		if _, err := m.files(); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}

func mutants(t *testing.T) []mutant {
	t.Helper()
	text, err := os.ReadFile("mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	all, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// run runs the suite with the fault until a test notices, and returns the name of
// that test. A fault that does not build is a fault of the list.
func run(t *testing.T, m mutant) string {
	t.Helper()
	overlay, err := m.overlay(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), suiteTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-count=1", "-failfast", "-run="+m.suite.run, module+m.suite.pkg)
	// By the environment, because tests with real packets build the agent themselves.
	// Without debugging information, they are linked in half the time.
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -ldflags=-w -overlay="+overlay)
	output, err := cmd.CombinedOutput()
	if strings.Contains(string(output), "[build failed]") || ctx.Err() != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	if err == nil {
		return ""
	}
	failed := failedTests(string(output))
	if len(failed) == 0 {
		t.Fatalf("the suite fails, but no test: %v\n%s", err, output)
	}
	return failed[0]
}

// failedTests returns the tests that go test reports as failed, without those that
// failed because of a subtest.
func failedTests(output string) []string {
	var failed []string
	for _, match := range regexp.MustCompile(`--- FAIL: (\S+) \(`).FindAllStringSubmatch(output, -1) {
		failed = append(failed, match[1])
	}
	return slices.DeleteFunc(failed, func(name string) bool {
		return slices.ContainsFunc(failed, func(other string) bool { return strings.HasPrefix(other, name+"/") })
	})
}

// overlay writes the changed files into dir, and the list of them that the
// compiler reads.
func (m mutant) overlay(dir string) (string, error) {
	files, err := m.files()
	if err != nil {
		return "", err
	}
	var list struct{ Replace map[string]string }
	list.Replace = make(map[string]string)
	for path, content := range files {
		changed := filepath.Join(dir, strings.ReplaceAll(path, "/", "_"))
		if err := os.WriteFile(changed, []byte(content), 0o644); err != nil {
			return "", err
		}
		original, err := filepath.Abs(filepath.Join(root, path))
		if err != nil {
			return "", err
		}
		list.Replace[original] = changed
	}
	content, err := json.Marshal(list)
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, content, 0o644)
}
