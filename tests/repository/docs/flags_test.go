package docs

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var helpFlag = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z-]+)`)

var subcommands = []string{"matrix", "explain", "diff", "check", "assert", "view", "flows", "suggest", "convert", "list", "doctor", "wait"}

// foreignFlags are flags of other programs that the documentation names.
var foreignFlags = []string{"allocate-node-cidrs", "conntrack-max-per-core", "disable-network-policy", "force-conflicts", "network-plugin", "network-policy", "prefix", "register-with-taints", "server-side", "serviceaccount", "tail", "take-ownership", "type"}

// A help is the flags that --help lists.
type help map[string]bool

// helps returns the help of the agent, of the status writer, and of the other commands.
var helps = sync.OnceValues(func() ([3]help, error) {
	var out [3]help
	bin, err := os.MkdirTemp("", "docs")
	if err != nil {
		return out, err
	}
	defer os.RemoveAll(bin)
	// go run keeps the program where nothing has changed, go build links it each time.
	for pkg, folder := range map[string]string{"./cmd/kube-network-policies": root, "./cmd/status-writer": root, ".": root + "/cmd/kubectl-netpol"} {
		build := exec.Command("go", "run", "-C", folder, "-ldflags=-w", "-exec=cp -t "+bin, pkg)
		if text, err := build.CombinedOutput(); err != nil {
			return out, fmt.Errorf("%v: %w\n%s", build, err, text)
		}
	}
	var errs []error
	for i, commands := range [][]string{
		{"kube-network-policies"},
		{"status-writer"},
		{
			"kubectl-netpol matrix", "kubectl-netpol explain", "kubectl-netpol diff", "kubectl-netpol check", "kubectl-netpol assert", "kubectl-netpol flows",
			"kubectl-netpol view", "kubectl-netpol suggest", "kubectl-netpol list", "kubectl-netpol doctor", "kubectl-netpol wait", "kube-network-policies flows",
			"kube-network-policies cleanup", "status-writer cleanup",
		},
	} {
		out[i] = help{}
		for _, command := range commands {
			errs = append(errs, out[i].read(filepath.Join(bin, command)))
		}
	}
	return out, errors.Join(errs...)
})

// read adds the flags of a command.
func (h help) read(command string) error {
	args := append(strings.Fields(command), "--help")
	text, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, text)
	}
	for _, m := range helpFlag.FindAllStringSubmatch(string(text), -1) {
		h[m[1]] = true
	}
	if len(h) < 5 {
		return fmt.Errorf("%s: found %d flags: the search is wrong", command, len(h))
	}
	return nil
}

var (
	shownMake   = regexp.MustCompile("(?m)(?:^|`|[=] )(?:sudo )?make ([a-z][a-z0-9-]+)")
	makeTarget  = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)
	goCommand   = regexp.MustCompile(`\bgo (?:run|build|test|install)\b(?: -C ([a-z/]+))?.* \./([a-z/-]+[a-z])(/\.\.\.)?`)
	toolCommand = regexp.MustCompile("(?:^|`|\\$ )kubectl[- ]netpol ([a-z]+)")
	ourCommand  = regexp.MustCompile(`\bkube(?:ctl[- ]netpol|-network-policies) .*--|\bstatus-writer .*--`)
	codeFlag    = regexp.MustCompile("`--([a-z][a-z-]*[a-z])")
	anyFlag     = regexp.MustCompile(`(?:^|\s)--([a-z][a-z-]*[a-z])`)
)

// Every command of ours that the documentation shows exists: make targets,
// packages, sub-commands and flags.
func TestShownCommandsExist(t *testing.T) {
	all, err := helps()
	if err != nil {
		t.Fatal(err)
	}
	flags := help{}
	for _, h := range all {
		maps.Copy(flags, h)
	}
	targets := map[string]bool{}
	for _, m := range makeTarget.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets[m[1]] = true
	}
	shown := 0
	for name, text := range texts(t) {
		if name == "CHANGELOG.md" {
			continue // it names what existed once
		}
		for line := range strings.Lines(text) {
			for _, target := range shownTargets(line) {
				shown++
				if !targets[target] {
					t.Errorf("%s shows make %s, which does not exist", name, target)
				}
			}
			for _, m := range goCommand.FindAllStringSubmatch(line, -1) {
				shown++
				if found, _ := filepath.Glob(filepath.Join(root, m[1], m[2], "*.go")); found == nil && m[3] == "" {
					t.Errorf("%s shows ./%s, which is no Go package", name, path.Join(m[1], m[2]))
				}
			}
			for _, m := range toolCommand.FindAllStringSubmatch(line, -1) {
				shown++
				if !slices.Contains(subcommands, m[1]) {
					t.Errorf("%s shows kubectl netpol %s, which does not exist", name, m[1])
				}
			}
			found := codeFlag.FindAllStringSubmatch(line, -1)
			if ourCommand.MatchString(line) {
				found = append(found, anyFlag.FindAllStringSubmatch(line, -1)...)
			}
			for _, m := range found {
				shown++
				if _, ok := flags[m[1]]; !ok && !slices.Contains(foreignFlags, m[1]) {
					t.Errorf("%s names --%s, which no program of ours has", name, m[1])
				}
			}
		}
	}
	if shown < 100 {
		t.Fatalf("found %d commands in the documentation: the search is wrong", shown)
	}
}

// shownTargets returns the make targets of a line: in code, or at its beginning.
func shownTargets(line string) []string {
	var out []string
	for _, m := range shownMake.FindAllStringSubmatch(line, -1) {
		out = append(out, strings.Fields(m[1])...)
	}
	return out
}

// texts are the pages with all of their text, code included.
func texts(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name := range pages(t) {
		out[name] = read(t, name)
	}
	return out
}
