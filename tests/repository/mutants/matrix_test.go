package mutants

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	// Tests that take longer are asked only about mutants of their own package.
	longest = 5 * time.Second
	// After so many ends of a package's process by one mutant, its other tests are not asked.
	maxCrashes = 3
)

const matrixHead = `# The tests that notice each mutant of mutants.txt, by package, at revision %s. Made by
#
#	MATRIX='%s' go test -v -count 1 -timeout 5h -run '^TestMatrix$' ./tests/repository/mutants
#
# Tests that take longer than %v were asked only about the mutants of their own package.
# "..." stands for tests that were not asked, because others had ended the process too often.
`

// TestMatrix asks all tests of the packages that MATRIX names about each mutant whose function
// they call, and writes matrix.txt.
func TestMatrix(t *testing.T) {
	patterns := os.Getenv("MATRIX")
	if patterns == "" {
		t.Skip("takes hours; set MATRIX to patterns of packages, whose tests are asked about all mutants")
	}
	all := mutants(t)
	asked := newPrograms(t, all, strings.Fields(patterns))
	t.Run("reaches", func(t *testing.T) {
		for _, p := range asked {
			t.Run(p.pkg, func(t *testing.T) {
				t.Parallel()
				p.record(t)
			})
		}
	})
	notices := make([]string, len(all))
	t.Run("notices", func(t *testing.T) {
		for i, m := range all {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				for _, p := range asked {
					if tests := p.ask(t, i+1, m); len(tests) > 0 {
						notices[i] += p.pkg + " " + strings.Join(tests, " ") + "\n"
					}
				}
				t.Log(notices[i])
			})
		}
	})
	revision := strings.TrimSpace(inRoot(t, "git", "rev-parse", "--short", "HEAD"))
	text := fmt.Sprintf(matrixHead, revision, patterns, longest)
	for i, m := range all {
		text += "\n== " + m.name + "\n" + notices[i]
	}
	if err := os.WriteFile("matrix.txt", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// testProgram has the tests of a package, and all mutants.
type testProgram struct {
	pkg, file, agent string
	tests            []reachingTest
}

// reachingTest is a test and the numbers of the mutants whose functions it calls.
type reachingTest struct {
	name    string
	takes   time.Duration
	reaches map[int]bool
}

// newPrograms builds the agent, and the tests of each package that has any.
func newPrograms(t *testing.T, all []mutant, patterns []string) (programs []*testProgram) {
	t.Helper()
	overlay, dir := overlayOf(t, all), t.TempDir()
	inRoot(t, "go", "build", "-o", dir, "-overlay="+overlay, "-ldflags=-w", "./cmd/kube-network-policies")
	list := append([]string{"list", "-f", `{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}`}, patterns...)
	for _, pkg := range strings.Fields(inRoot(t, "go", list...)) {
		pkg = strings.TrimPrefix(pkg, module)
		p := &testProgram{pkg: pkg, file: filepath.Join(dir, strings.ReplaceAll(pkg, "/", "_")+".test"), agent: filepath.Join(dir, "kube-network-policies")}
		inRoot(t, "go", "test", "-c", "-o", p.file, "-vet=off", "-overlay="+overlay, "-ldflags=-w", "./"+pkg)
		programs = append(programs, p)
	}
	return programs
}

func inRoot(t *testing.T, name string, arguments ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, arguments...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	return string(output)
}

// reachesFile gets the numbers of the mutants that a test reaches.
func (p *testProgram) reachesFile() string { return p.file + ".reaches" }

func (p *testProgram) run(t *testing.T, timeout time.Duration, mutant int, arguments ...string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), timeout+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.file, append(arguments, "-test.v", "-test.short", "-test.timeout="+timeout.String())...)
	cmd.Dir, cmd.WaitDelay = filepath.Join(root, p.pkg), time.Second
	cmd.Env = append(os.Environ(), fmt.Sprintf("MUTANT=%d", mutant), "MUTANT_REACHES="+p.reachesFile(), "AGENT_BINARY="+p.agent)
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// record runs each test without a mutant, for how long it takes and what it reaches.
func (p *testProgram) record(t *testing.T) {
	list, err := p.run(t, time.Minute, 0, "-test.list=^Test")
	if err != nil {
		t.Fatalf("%v\n%s", err, list)
	}
	for _, name := range regexp.MustCompile(`(?m)^Test\w+$`).FindAllString(list, -1) {
		if err := os.WriteFile(p.reachesFile(), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if output, err := p.run(t, 5*time.Minute, recordReaches, "-test.run=^"+name+"$"); err != nil {
			t.Logf("%s is not asked, because it fails without a mutant: %v\n%s", name, err, output)
			continue
		}
		test := reachingTest{name, time.Since(began), map[int]bool{}}
		content, err := os.ReadFile(p.reachesFile())
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range strings.Fields(string(content)) {
			number, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			test.reaches[number] = true
		}
		p.tests = append(p.tests, test)
	}
}

// ask returns the tests that notice a mutant. After a test has ended the process, the others
// run again.
func (p *testProgram) ask(t *testing.T, number int, m mutant) (noticed []string) {
	own := m.suite.pkg == p.pkg || slices.ContainsFunc(m.edits, func(e edit) bool { return path.Dir(e.file) == p.pkg })
	var left []string
	timeout := 10 * time.Second
	for _, test := range p.tests {
		if test.reaches[number] && (own || test.takes <= longest) {
			left = append(left, test.name)
			timeout += 3 * test.takes
		}
	}
	for range maxCrashes {
		if len(left) == 0 {
			return noticed
		}
		output, err := p.run(t, timeout, number, "-test.run=^("+strings.Join(left, "|")+")$")
		if err == nil {
			return noticed
		}
		var failed []string
		failed, left = results(output, left)
		noticed = append(noticed, failed...)
	}
	if len(left) > 0 {
		noticed = append(noticed, "...")
	}
	return noticed
}

var result = regexp.MustCompile(`(?m)^--- (FAIL|PASS|SKIP): (\w+) `)

// results returns the tests that failed, with the one that ended the process, and those without
// a result.
func results(output string, asked []string) (failed, left []string) {
	verdicts := map[string]string{}
	for _, match := range result.FindAllStringSubmatch(output, -1) {
		verdicts[match[2]] = match[1]
	}
	begun := -1
	for _, name := range asked {
		switch {
		case verdicts[name] == "FAIL":
			failed = append(failed, name)
		case verdicts[name] == "":
			if strings.Contains(output, "=== RUN   "+name+"\n") {
				begun = len(left)
			}
			left = append(left, name)
		}
	}
	if begun >= 0 {
		failed = append(failed, left[begun])
		left = slices.Delete(left, begun, begun+1)
	}
	return failed, left
}
