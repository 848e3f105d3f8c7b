// Package mutants measures how strong the scenarios are: each fault of mutants.txt
// is put into the evaluator or the compiler, and the simulated suite must notice.
// The source tree is not touched: the compiler is shown other files in place of its
// own, which have all faults, and the environment says which one is active.
package mutants

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

const (
	module = "sigs.k8s.io/kube-network-policies/"
	plugin = "cmd/kubectl-netpol" // a module of its own
)

// suiteTimeout bounds the tests of one mutant.
const suiteTimeout = 20 * time.Minute

func TestMutants(t *testing.T) {
	since := os.Getenv("MUTANTS")
	if since == "" {
		t.Skip("takes minutes; set MUTANTS=all to run it, or to a revision for the mutants of packages that have changed since")
	}
	all := mutants(t)
	if since != "all" {
		if all = ofPackages(all, changedSince(t, since)); len(all) == 0 {
			t.Skip("no package with a mutant has changed since " + since)
		}
	}
	b := build(t, all)
	// Tests with real packets wait most of the time, and several run at a time.
	for i, m := range all {
		t.Run(m.name, func(t *testing.T) {
			if !m.suite.comparesRates() {
				t.Parallel()
			}
			if m.suite.sendsPackets() {
				labtest.Need(t)
			}
			killer := b.run(t, i+1, m.suite)
			if killer == "" {
				t.Fatal("no test notices it")
			}
			t.Logf("killed by %s", killer)
		})
	}
	// What kills the mutants must be the mutants.
	passed := make(map[suite]bool)
	for _, m := range all {
		if passed[m.suite] || m.suite.sendsPackets() {
			continue
		}
		passed[m.suite] = true
		t.Run("none: "+m.suite.pkg+" "+m.suite.run, func(t *testing.T) {
			t.Parallel()
			if killer := b.run(t, 0, m.suite); killer != "" {
				t.Errorf("%s fails without a mutant", killer)
			}
		})
	}
}

// changedSince returns the folders of the files that differ from those of a revision.
func changedSince(t *testing.T, revision string) map[string]bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "diff", "--name-only", revision).Output()
	if err != nil {
		t.Fatalf("MUTANTS=%s: git diff: %v", revision, err)
	}
	folders := map[string]bool{}
	for name := range strings.Lines(string(out)) {
		folders[path.Dir(strings.TrimSpace(name))] = true
	}
	return folders
}

// ofPackages returns the mutants with an edit or a test in one of these folders.
func ofPackages(all []mutant, folders map[string]bool) []mutant {
	return slices.DeleteFunc(all, func(m mutant) bool {
		return !folders[m.suite.pkg] && !slices.ContainsFunc(m.edits, func(e edit) bool { return folders[path.Dir(e.file)] })
	})
}

// TestMutantsApply keeps the list in step with the code: every mutant applies, and the
// packages compile with all of them.
func TestMutantsApply(t *testing.T) {
	files, err := combine(mutants(t))
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := writeOverlay(t.TempDir(), files)
	if err != nil {
		t.Fatal(err)
	}
	var packages []string
	for file := range files {
		packages = append(packages, path.Dir(file))
	}
	goEach(t, packages, "build", "-overlay="+overlay)
}

// goEach runs a command of go with packages, in the module of each: the plugin has its own.
func goEach(t *testing.T, packages []string, arguments ...string) {
	t.Helper()
	slices.Sort(packages)
	ofModule := map[string][]string{}
	for _, pkg := range slices.Compact(packages) {
		folder := root
		if pkg == plugin || strings.HasPrefix(pkg, plugin+"/") {
			folder = filepath.Join(root, plugin)
		}
		ofModule[folder] = append(ofModule[folder], module+pkg)
	}
	for folder, packages := range ofModule {
		cmd := exec.CommandContext(t.Context(), "go", slices.Concat(arguments, packages)...)
		cmd.Dir = folder
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", cmd, output)
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

// binaries is the folder of the test binaries and the agent that have all mutants.
type binaries string

// overlayOf returns the file of an overlay with all mutants, for the go command.
func overlayOf(t *testing.T, all []mutant) string {
	t.Helper()
	files, err := combine(all)
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := writeOverlay(t.TempDir(), files)
	if err != nil {
		t.Fatal(err)
	}
	return overlay
}

// build builds the agent and the tests of every mutant. A fault that does not build is a
// fault of the list.
func build(t *testing.T, all []mutant) binaries {
	t.Helper()
	overlay, dir := overlayOf(t, all), t.TempDir()
	var tests []string
	for _, m := range all {
		tests = append(tests, m.suite.pkg)
	}
	goEach(t, []string{"cmd/kube-network-policies"}, "build", "-o", dir, "-overlay="+overlay, "-ldflags=-w")
	// With the slash a single test, too, is named after its package.
	goEach(t, tests, "test", "-c", "-o", dir+"/", "-vet=off", "-overlay="+overlay, "-ldflags=-w")
	return binaries(dir)
}

// run runs a suite with a mutant, or with none if it is 0, until a test notices. It returns
// the name of that test.
func (b binaries) run(t *testing.T, mutant int, s suite) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), suiteTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(string(b), path.Base(s.pkg)+".test"), "-test.failfast", "-test.run="+s.run)
	cmd.Dir = filepath.Join(root, s.pkg)
	cmd.Env = append(os.Environ(), fmt.Sprintf("MUTANT=%d", mutant), "AGENT_BINARY="+filepath.Join(string(b), "kube-network-policies"))
	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("%v\n%s", ctx.Err(), output)
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

// writeOverlay writes the changed files into dir, and the list of them that the compiler
// reads. It returns the name of the list.
func writeOverlay(dir string, files map[string]string) (string, error) {
	var list struct{ Replace map[string]string }
	list.Replace = make(map[string]string)
	for file, content := range files {
		changed := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(changed, []byte(content), 0o644); err != nil {
			return "", err
		}
		original, err := filepath.Abs(filepath.Join(root, file))
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
