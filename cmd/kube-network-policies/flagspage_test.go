package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

var update = flag.Bool("update", false, "write the tables of docs/flags.md")

const flagsPage = "../../docs/flags.md"

// generated is a table of the page, with the name of the command.
var generated = regexp.MustCompile(`(?s)(<!-- flags of kube-network-policies ?([a-z -]*) -->\n).*?(<!-- end -->)`)

var gatesTable = regexp.MustCompile(`(?s)(<!-- gates -->\n).*?(<!-- end -->)`)

var libraryFlag = regexp.MustCompile(`^log-(flush|json|text)-`)

func isLogging(name string) bool {
	return libraryFlag.MatchString(name) || name == "v" || name == "vmodule" || name == "logging-format"
}

// The tables of docs/flags.md are what --help lists.
func TestFlagsPage(t *testing.T) {
	page, err := os.ReadFile(flagsPage)
	if err != nil {
		t.Fatal(err)
	}
	tables, said := 0, map[string]string{}
	want := generated.ReplaceAllStringFunc(string(page), func(table string) string {
		tables++
		m := generated.FindStringSubmatch(table)
		c, _, rest := choose(strings.Fields(m[2]))
		if len(rest) > 0 {
			t.Fatalf("there is no command %q", m[2])
		}
		return m[1] + tableOf(c, said) + m[3]
	})
	if tables < 4 {
		t.Errorf("%s has %d tables", flagsPage, tables)
	}
	switch {
	case want == string(page):
	case *update:
		if err := os.WriteFile(flagsPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not what --help lists: run make docs", flagsPage)
	}
}

// The table of gates in docs/flags.md is compile.Gates.
func TestFlagsPageHasTheGates(t *testing.T) {
	page, err := os.ReadFile(flagsPage)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| gate | default | stage | proposal | what it is for |\n|---|---|---|---|---|\n")
	for _, g := range compile.Gates {
		fmt.Fprintf(&b, "| `%s` | %v | %s | %s | %s |\n", g.Name, g.Default(), g.Stage, cmp.Or(g.Proposal, "–"), g.Meaning)
	}
	want := gatesTable.ReplaceAllString(string(page), "${1}"+b.String()+"${2}")
	switch {
	case !gatesTable.Match(page):
		t.Errorf("%s has no table of gates", flagsPage)
	case want == string(page):
	case *update:
		if err := os.WriteFile(flagsPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s does not list the gates: run make docs", flagsPage)
	}
}

// tableOf lists the flags of a command, without those of the logging library that hardly
// anyone needs. said holds the flags of earlier tables, which later ones name only; the agent's
// table comes first.
func tableOf(c command, said map[string]string) string {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.addFlags(fs)
	var b strings.Builder
	b.WriteString("| flag | default | meaning |\n|---|---|---|\n")
	var repeated []string
	fs.VisitAll(func(f *pflag.Flag) {
		if libraryFlag.MatchString(f.Name) {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		if value != "" {
			value = "=" + value
		}
		usage = strings.ToUpper(usage[:1]) + strings.TrimSuffix(usage[1:], ".") + "."
		if said[f.Name] == f.DefValue+usage {
			repeated = append(repeated, "`--"+f.Name+"`")
			return
		}
		said[f.Name] = f.DefValue + usage
		cells := []string{"`--" + f.Name + value + "`", strings.Trim(f.DefValue, "[]"), usage}
		for i, cell := range cells {
			cell = strings.ReplaceAll(strings.ReplaceAll(cell, "|", `\|`), "*", `\*`)
			cells[i] = strings.TrimSpace(cell) + " "
			if cell == "" {
				cells[i] = ""
			}
		}
		fmt.Fprintf(&b, "| %s| %s| %s|\n", cells[0], cells[1], cells[2])
	})
	if len(repeated) > 0 {
		fmt.Fprintf(&b, "| %s | | As above. |\n", strings.Join(repeated, ", "))
	}
	return b.String()
}
