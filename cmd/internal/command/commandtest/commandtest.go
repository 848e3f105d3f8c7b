// Package commandtest checks what is promised of the commands of every program.
package commandtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command"
)

// WantError checks that err contains all parts.
func WantError(t *testing.T, err error, parts []string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not contain %q", err, part)
		}
	}
}

// Help checks that the help of each command lists all commands with an example, and each flag with
// help.
func Help(t *testing.T, p *command.Program) {
	for name := range p.Commands {
		t.Run(name, func(t *testing.T) {
			fs := p.Flags(p.Commands[name](), name)
			help := fmt.Sprintf(p.Usage, fs.Name(), fs.FlagUsages())
			for listed := range p.Commands {
				if want := "Example: " + strings.TrimSpace(p.Name+" "+listed); !strings.Contains(help, want) {
					t.Errorf("help has no %q:\n%s", want, help)
				}
			}
			if !strings.HasPrefix(help, "Usage: "+fs.Name()+" ") || !strings.Contains(help, "Example: "+p.Name+" version") {
				t.Errorf("help is\n%s", help)
			}
			fs.VisitAll(func(f *pflag.Flag) {
				if f.Usage == "" {
					t.Errorf("--%s has no help", f.Name)
				}
			})
		})
	}
}

// FlagsAreFew checks that the help is short enough to be read.
func FlagsAreFew(t *testing.T, p *command.Program, most int) {
	n := 0
	p.Flags(p.Commands[""](), "").VisitAll(func(f *pflag.Flag) {
		if !isLogging(f.Name) {
			n++
		}
	})
	if n > most {
		t.Errorf("%s has %d flags: which one could be decided by the program?", p.Name, n)
	}
}

// RemovedFlagsAreNotThere checks that no removed flag exists, and that the texts name existing flags.
func RemovedFlagsAreNotThere(t *testing.T, p *command.Program) {
	for name, removed := range p.Removed {
		fs := p.Flags(p.Commands[name](), name)
		for flag, instead := range removed {
			if fs.Lookup(flag) != nil {
				t.Errorf("%s has --%s, which was removed", fs.Name(), flag)
			}
			for _, m := range regexp.MustCompile(`--([a-z-]+[a-z])`).FindAllStringSubmatch(instead, -1) {
				if fs.Lookup(m[1]) == nil && m[1] != "wait" {
					t.Errorf("%s --%s: there is no --%s", fs.Name(), flag, m[1])
				}
			}
		}
	}
}

var libraryFlag = regexp.MustCompile(`^log-(flush|json|text)-`)

func isLogging(name string) bool {
	return libraryFlag.MatchString(name) || name == "v" || name == "vmodule" || name == "logging-format"
}

// WrongConfiguration checks that a command that does not exist lists those that do, and that files of flags that
// cannot be read end a program like wrong flags, and name the flag and what is wrong.
func WrongConfiguration(t *testing.T, p *command.Program) {
	WantError(t, p.CheckCommand([]string{"statsu"}), []string{p.Name + " statsu: there is no such command", "cleanup", "version"})
	malformed := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(malformed, []byte("a: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for kubeconfig, want := range map[string][]string{
		"/nonexistent": {"--kubeconfig=/nonexistent: ", "no such file"},
		malformed:      {"--kubeconfig=" + malformed + ": ", "yaml: line 1"},
		"":             {"--kubeconfig is missing"},
	} {
		api := command.API{Kubeconfig: kubeconfig}
		_, err := api.Client()
		WantError(t, err, want)
		if status := command.Status(err); status != 2 {
			t.Errorf("--kubeconfig=%s: exit status %d, want 2", kubeconfig, status)
		}
	}
}
