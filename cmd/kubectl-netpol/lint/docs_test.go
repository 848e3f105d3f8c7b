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
	document = "../../../docs/lints.md"
	findings = "testdata/findings.txt"
	begin    = "<!-- make docs writes the rules. -->\n"
	end      = "<!-- The end of the rules. -->\n"
)

// docs/lints.md contains the rules with the corrections of their examples, which say what a fix says.
// The findings in the examples are in a file of their own.
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
	var doc, found strings.Builder
	doc.WriteString(head + begin)
	cluster := read(t, "cluster.yaml")
	for _, r := range Rules {
		bad, good := read(t, r.ID, "bad.yaml"), read(t, r.ID, "good.yaml")
		fmt.Fprintf(&doc, "\n### %s\n\n%s\n\n", r.ID, wrapped(fmt.Sprintf("%v: %s. %s", r.Severity.String(), lowerFirst(r.Title), r.Why)))
		doc.WriteString("```diff\n" + diff(bad, good) + "```\n")
		if r.check != nil {
			for _, f := range Check(input(t, cluster, bad)) {
				fmt.Fprintf(&found, "%s: %s: %s\n", r.ID, strings.TrimSpace(f.Object.String()+" "+f.Field), f.Message)
			}
		}
	}
	doc.WriteString("\n" + end + tail)
	compare(t, document, doc.String())
	compare(t, findings, found.String())
}

// compare compares a generated file with what it should be, and writes it with -update.
func compare(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s is out of date: make docs (%v)", file, err)
	}
}

// diff shows the lines that change from one text to another, as diff does.
func diff(from, to string) string {
	a, b := strings.Split(strings.TrimSpace(from), "\n"), strings.Split(strings.TrimSpace(to), "\n")
	common := make([][]int, len(a)+1) // number of common lines of a[i:] and b[j:]
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var changed strings.Builder
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			i++
			j++
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			changed.WriteString("-" + a[i] + "\n")
			i++
		default:
			changed.WriteString("+" + b[j] + "\n")
			j++
		}
	}
	return changed.String()
}

// wrapped breaks text into lines of at most 100 characters where words permit it.
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

// Each rule has texts, and they are sentences.
func TestRules(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rules {
		if seen[r.ID] || r.ID == "" || r.Title == "" || strings.HasSuffix(r.Title, ".") || !strings.HasSuffix(r.Why, ".") || r.Fix != "" && !strings.HasSuffix(r.Fix, ".") {
			t.Errorf("incomplete rule %+v", r)
		}
		seen[r.ID] = true
	}
}
