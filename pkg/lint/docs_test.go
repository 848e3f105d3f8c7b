package lint

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the rules into docs/lints.md")

const (
	document = "../../docs/lints.md"
	begin    = "<!-- The rules are written by go test ./pkg/lint -update. -->\n"
	end      = "<!-- The end of the rules. -->\n"
)

// docs/lints.md has the table of rules, and the examples with their findings.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatalf("%s has no line %s", document, begin)
	}
	_, tail, _ := strings.Cut(rest, end)
	var b strings.Builder
	b.WriteString(head + begin + "\n| rule | severity | finds |\n| --- | --- | --- |\n")
	for _, r := range Rules {
		fmt.Fprintf(&b, "| [%s](#%s) | %v | %s |\n", r.ID, r.ID, r.Severity, r.Title)
	}
	cluster := read(t, "cluster.yaml")
	for _, r := range Rules {
		bad, good := read(t, r.ID, "bad.yaml"), read(t, r.ID, "good.yaml")
		fmt.Fprintf(&b, "\n### %s\n\n%s", r.ID, wrapped(fmt.Sprintf("%v: %s. %s %s", r.Severity, lowerFirst(r.Title), r.Why, r.Fix)))
		fmt.Fprintf(&b, "\n\nBad:\n\n```yaml\n%s```\n", bad)
		if r.check != nil {
			b.WriteString("\n```text\n")
			for _, f := range Check(input(t, cluster, bad)) {
				fmt.Fprintf(&b, "%s: %s\n  Fix: %s\n", strings.TrimSpace(f.Object.String()+" "+f.Field), f.Message, f.Fix)
			}
			b.WriteString("```\n")
		}
		fmt.Fprintf(&b, "\nGood:\n\n```yaml\n%s```\n", good)
	}
	b.WriteString("\n" + end + tail)
	switch {
	case b.String() == string(text):
	case *update:
		if err := os.WriteFile(document, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is out of date; go test ./pkg/lint -update writes it", document)
	}
}

// wrapped returns text in lines of at most 100 characters, where words permit it.
func wrapped(text string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case column+1+len(word) > 100:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

func lowerFirst(s string) string {
	if strings.HasPrefix(s, "DNS") || strings.HasPrefix(s, "podSelector") {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// The table says something about every rule, in sentences.
func TestRules(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rules {
		if seen[r.ID] || r.ID == "" || r.Title == "" || strings.HasSuffix(r.Title, ".") || !strings.HasSuffix(r.Why, ".") || r.Fix != "" && !strings.HasSuffix(r.Fix, ".") {
			t.Errorf("rule %+v", r)
		}
		seen[r.ID] = true
	}
}
