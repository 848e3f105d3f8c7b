package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// The help of each command lists all commands with an example, and each flag with help.
func TestHelp(t *testing.T) {
	for name, c := range map[string]command{
		"kube-network-policies":               newOptions(),
		"kube-network-policies " + writerName: newWriterOptions(),
	} {
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
