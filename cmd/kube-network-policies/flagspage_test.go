package main

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command/commandtest"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

var gatesTable = regexp.MustCompile(`(?s)(<!-- gates -->\n).*?(<!-- end -->)`)

// The tables of docs/flags.md are what --help lists.
func TestFlagsPage(t *testing.T) { commandtest.FlagsPage(t, &program, 2) }

// The table of gates in docs/flags.md is compile.Gates.
func TestFlagsPageHasTheGates(t *testing.T) {
	commandtest.Page(t, gatesTable, 1, func([]string) string {
		var b strings.Builder
		b.WriteString("| gate | default | stage | proposal | what it is for |\n|---|---|---|---|---|\n")
		for _, g := range compile.Gates {
			fmt.Fprintf(&b, "| `%s` | %v | %s | %s | %s |\n", g.Name, g.Default(), g.Stage, cmp.Or(g.Proposal, "–"), g.Meaning)
		}
		return b.String()
	})
}
