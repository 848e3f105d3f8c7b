package commandtest

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command"
)

var update = flag.Bool("update", false, "write the tables of docs/flags.md")

const flagsPage = "../../docs/flags.md"

// Page compares a part of docs/flags.md with the code, or writes it with -update. Of each match of
// pattern the text between its first and last group is what generate returns for the groups.
func Page(t *testing.T, pattern *regexp.Regexp, least int, generate func(groups []string) string) {
	t.Helper()
	page, err := os.ReadFile(flagsPage)
	if err != nil {
		t.Fatal(err)
	}
	tables := 0
	want := pattern.ReplaceAllStringFunc(string(page), func(table string) string {
		tables++
		m := pattern.FindStringSubmatch(table)
		return m[1] + generate(m) + m[len(m)-1]
	})
	if tables < least {
		t.Errorf("%s has %d tables, want %d", flagsPage, tables, least)
	}
	switch {
	case want == string(page):
	case *update:
		if err := os.WriteFile(flagsPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not what the code says: run make docs", flagsPage)
	}
}

// FlagsPage checks that the tables of a program in docs/flags.md are what --help lists. Flags that an
// earlier table or a set of flags in said has are only named.
func FlagsPage(t *testing.T, p *command.Program, least int, said ...*pflag.FlagSet) {
	earlier := map[string]string{}
	for _, fs := range said {
		fs.VisitAll(func(f *pflag.Flag) { earlier[f.Name] = meaning(f) })
	}
	tables := regexp.MustCompile(`(?s)(<!-- flags of ` + p.Name + `( [a-z]+)? -->\n).*?(<!-- end -->)`)
	Page(t, tables, least, func(m []string) string {
		c, name, rest := p.Choose(strings.Fields(m[2]))
		if len(rest) > 0 {
			t.Fatalf("there is no command %q", m[2])
		}
		return tableOf(p.Flags(c, name), earlier)
	})
}

// meaning is the default and the usage of a flag.
func meaning(f *pflag.Flag) string {
	_, usage := pflag.UnquoteUsage(f)
	return f.DefValue + strings.ToUpper(usage[:1]) + strings.TrimSuffix(usage[1:], ".") + "."
}

// tableOf lists the flags of a command, without those of the logging library that hardly
// anyone needs. said holds the flags of earlier tables, which later ones name only.
func tableOf(fs *pflag.FlagSet, said map[string]string) string {
	var b strings.Builder
	b.WriteString("| flag | default | meaning |\n|---|---|---|\n")
	var repeated []string
	fs.VisitAll(func(f *pflag.Flag) {
		if libraryFlag.MatchString(f.Name) {
			return
		}
		if said[f.Name] == meaning(f) {
			repeated = append(repeated, "`--"+f.Name+"`")
			return
		}
		said[f.Name] = meaning(f)
		value, _ := pflag.UnquoteUsage(f)
		if value != "" {
			value = "=" + value
		}
		cells := []string{"`--" + f.Name + value + "`", strings.Trim(f.DefValue, "[]"), strings.TrimPrefix(meaning(f), f.DefValue)}
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
