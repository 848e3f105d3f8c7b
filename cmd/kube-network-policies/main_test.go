package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// The help of each command lists all commands with an example, and each flag with help.
func TestHelp(t *testing.T) {
	for _, args := range []string{"", cleanupName, writerName, writerName + " " + cleanupName} {
		c, command, _ := choose(strings.Fields(args))
		if command != args {
			t.Errorf("%q is the command %q", args, command)
		}
		name := strings.TrimSpace(agentName + " " + args)
		t.Run(name, func(t *testing.T) {
			fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
			c.addFlags(fs)
			help := fmt.Sprintf(usage, name, fs.FlagUsages())
			for _, want := range []string{"Usage: " + name + " ", "Example: kube-network-policies --", "Example: kube-network-policies " + writerName + " ", "Example: kube-network-policies version"} {
				if !strings.Contains(help, want) {
					t.Errorf("help has no %q:\n%s", want, help)
				}
			}
			fs.VisitAll(func(f *pflag.Flag) {
				if f.Usage == "" {
					t.Errorf("--%s has no help", f.Name)
				}
			})
		})
	}
}
