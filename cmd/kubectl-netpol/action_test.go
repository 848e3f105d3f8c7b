package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// asProgram makes the test binary the program itself.
const asProgram = "KUBECTL_NETPOL_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// gh stands for the program of this name: it knows a comment if there is a file of that name,
// and keeps what is written.
const gh = `#!/usr/bin/env bash
all=$*
echo "$all" >>"$FAKE/calls"
case "$all" in
  *--paginate*) cat "$FAKE/comment" 2>/dev/null || true ;;
  *body=@*) if [[ -e $FAKE/refuse ]]; then exit 1; fi; cp "${all##*body=@}" "$FAKE/body" ;;
esac
`

// actionRun is the script of the action in a clone of a repository.
type actionRun struct {
	t          *testing.T
	fake, repo string
	env        []string
}

// newAction makes a repository whose base has the files of before, and whose work tree has
// those of after.
func newAction(t *testing.T, before, after map[string]string) *actionRun {
	t.Helper()
	dir := t.TempDir()
	a := &actionRun{t: t, fake: filepath.Join(dir, "fake"), repo: filepath.Join(dir, "clone")}
	origin, bin := filepath.Join(dir, "origin"), filepath.Join(dir, "bin")
	write := func(folder string, files map[string]string, mode os.FileMode) {
		for name, text := range files {
			path := filepath.Join(folder, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	write(bin, map[string]string{"gh": gh, "kubectl-netpol": "#!/bin/sh\n" + asProgram + "=1 exec '" + self + "' \"$@\"\n"}, 0o755)
	write(a.fake, map[string]string{"calls": ""}, 0o644)
	if err := os.MkdirAll(origin, 0o755); err != nil {
		t.Fatal(err)
	}
	write(origin, before, 0o644)
	a.env = append(os.Environ(),
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com",
		"PATH="+bin+":"+os.Getenv("PATH"), "FAKE="+a.fake, "RUNNER_TEMP="+dir, "GITHUB_REPOSITORY=example/shop",
		"GITHUB_OUTPUT="+filepath.Join(a.fake, "output"), "GITHUB_STEP_SUMMARY="+filepath.Join(a.fake, "summary"), "NETPOL_PATH=manifests", "FAIL_ON=warning")
	a.git(origin, "init", "--quiet", "--initial-branch=main")
	a.git(origin, "config", "uploadpack.allowAnySHA1InWant", "true")
	a.git(origin, "add", "-A")
	a.git(origin, "commit", "--quiet", "--allow-empty", "-m", "base")
	a.env = append(a.env, "BASE="+a.git(origin, "rev-parse", "HEAD"))
	a.git(origin, "clone", "--quiet", origin, a.repo)
	if err := os.RemoveAll(filepath.Join(a.repo, "manifests")); err != nil {
		t.Fatal(err)
	}
	write(a.repo, after, 0o644)
	return a
}

func (a *actionRun) git(dir string, args ...string) string {
	a.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = dir, a.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		a.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// run runs the script and returns its exit code and what it prints.
func (a *actionRun) run(env ...string) (code int, log string) {
	a.t.Helper()
	script, err := filepath.Abs("../../action/netpol.sh")
	if err != nil {
		a.t.Fatal(err)
	}
	cmd := exec.Command("bash", script)
	cmd.Dir, cmd.Env = a.repo, append(slices.Clone(a.env), env...)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		a.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// file returns what the script or gh has written, empty if there is no such file.
func (a *actionRun) file(name string) string {
	data, err := os.ReadFile(filepath.Join(a.fake, name))
	if err != nil && !os.IsNotExist(err) {
		a.t.Fatal(err)
	}
	return string(data)
}

func (a *actionRun) write(name, text string) {
	a.t.Helper()
	if err := os.WriteFile(filepath.Join(a.fake, name), []byte(text), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func manifestFiles(texts ...string) map[string]string {
	return map[string]string{"manifests/all.yaml": strings.Join(texts, "---\n")}
}

// The script compares with the base, comments on the pull request, and fails for findings.
func TestTheAction(t *testing.T) {
	dead := treePolicy + "  policyTypes: [Ingress]\n  egress: [{}]\n"
	for name, tc := range map[string]struct {
		before, after map[string]string
		env           []string
		code          int
		comment       []string
		output        string
	}{
		"a policy is added": {manifestFiles(treeDeployment), manifestFiles(treeDeployment, treePolicy), nil, exitYes,
			[]string{"### Network policies: connections that change", "| no longer allowed | default/new pod, outside | default/deploy/web |", "0 findings in 1 policy"}, "changes=true"},
		"a policy is removed": {manifestFiles(treeDeployment, treePolicy), manifestFiles(treeDeployment), []string{"NETPOL_ARGS=--exclude=none\n\n"}, exitYes,
			[]string{"| newly allowed | default/new pod, outside |", "no policy isolates default/web"}, "changes=true"},
		"nothing changes":  {manifestFiles(treeDeployment, treePolicy), manifestFiles(treeDeployment, treePolicy), nil, exitYes, []string{"Nothing changes."}, "changes=false"},
		"a mistake":        {manifestFiles(treeDeployment), manifestFiles(treeDeployment, dead), nil, exitNo, []string{"[dead-direction]"}, "changes=true"},
		"a known one":      {manifestFiles(treeDeployment), manifestFiles(treeDeployment, dead), []string{"FAIL_ON=none"}, exitYes, []string{"[dead-direction]"}, "changes=true"},
		"no base":          {nil, manifestFiles(treeDeployment, treePolicy), nil, exitYes, []string{"There is no base to compare with."}, "sarif="},
		"a faulty base":    {manifestFiles("kind: NetworkPolicy\n"), manifestFiles(treeDeployment, treePolicy), nil, exitError, []string{"The connections could not be compared:", "apiVersion: missing"}, "sarif="},
		"a faulty request": {manifestFiles(treeDeployment), manifestFiles("kind: NetworkPolicy\n"), nil, exitError, []string{"apiVersion: missing"}, ""},
		"a bad argument":   {manifestFiles(treeDeployment), manifestFiles(treeDeployment, treePolicy), []string{"NETPOL_ARGS=--wrong"}, exitError, []string{"unknown flag: --wrong"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAction(t, tc.before, tc.after)

			code, log := a.run(append(tc.env, "PULL_REQUEST=7")...)

			comment := a.file("body")
			if code != tc.code || !strings.HasPrefix(comment, "<!-- kubectl-netpol -->\n") || comment != a.file("summary") {
				t.Errorf("got %d, want %d\n%s\ncomment:\n%s", code, tc.code, log, comment)
			}
			for _, want := range tc.comment {
				if !strings.Contains(comment, want) || !strings.Contains(log, want) {
					t.Errorf("no %q in\n%s\nor in the log\n%s", want, comment, log)
				}
			}
			if output := a.file("output"); !strings.Contains(output, tc.output) {
				t.Errorf("output %q", output)
			}
			if !strings.Contains(a.file("calls"), "--method POST repos/example/shop/issues/7/comments") {
				t.Errorf("gh was called with\n%s", a.file("calls"))
			}
		})
	}
}

func TestCommentsOfTheAction(t *testing.T) {
	a := newAction(t, manifestFiles(treeDeployment), manifestFiles(treeDeployment, treePolicy))
	a.write("comment", "41\n42\n")
	if code, log := a.run("PULL_REQUEST=7"); code != exitYes || !strings.Contains(a.file("calls"), "--method PATCH repos/example/shop/issues/comments/41 ") {
		t.Errorf("a second run: got %d\n%s\n%s", code, log, a.file("calls"))
	}

	a.write("refuse", "")
	if code, log := a.run("PULL_REQUEST=7"); code != exitYes || !strings.Contains(log, "::warning::no comment could be written") {
		t.Errorf("a token that may not write: got %d\n%s", code, log)
	}

	a.write("calls", "")
	if code, log := a.run(); code != exitYes || a.file("calls") != "" {
		t.Errorf("without a pull request: got %d\n%s\n%s", code, log, a.file("calls"))
	}
}

// The SARIF of the action is that of check.
func TestSARIFOfTheAction(t *testing.T) {
	a := newAction(t, manifestFiles(treeDeployment), manifestFiles(treeDeployment, treePolicy+"  policyTypes: [Ingress]\n  egress: [{}]\n"))
	a.run()
	_, path, _ := strings.Cut(strings.TrimSpace(strings.Split(a.file("output"), "\n")[0]), "=")
	data, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(data), `"uri": "manifests/all.yaml"`) {
		t.Errorf("got %v\n%s", err, data)
	}
}

// The example uses inputs and outputs that the action has. That it is a workflow is what
// actionlint checks (make lint).
func TestExampleOfTheAction(t *testing.T) {
	read := func(name string, into any) string {
		t.Helper()
		data, err := os.ReadFile("../../action/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(data, into); err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	var action struct {
		Inputs, Outputs map[string]any
	}
	var example struct {
		Jobs map[string]struct {
			Steps []struct {
				Uses string
				With map[string]string
			}
		}
	}
	text := read("action.yml", &action)
	read("example.yml", &example)
	found := false
	for _, s := range example.Jobs["policies"].Steps {
		if !strings.HasPrefix(s.Uses, "OWNER/kube-network-policies/action@v") {
			continue
		}
		found = true
		for name := range s.With {
			if action.Inputs[name] == nil {
				t.Errorf("the action has no input %s", name)
			}
		}
	}
	if !found || action.Outputs["sarif"] == nil {
		t.Error("the example does not use the action")
	}
	for name := range action.Inputs {
		if !strings.Contains(text, "inputs."+name) {
			t.Errorf("the input %s is not used", name)
		}
	}
}
