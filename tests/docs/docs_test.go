// Package docs holds what the documentation promises about the code.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// sources returns the text of the Go files below dir that want accepts.
func sources(t *testing.T, dir string, want func(name string) bool) string {
	t.Helper()
	var text strings.Builder
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || !want(path) {
			return err
		}
		b, err := os.ReadFile(path)
		text.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}

func isTest(path string) bool { return strings.HasSuffix(path, "_test.go") }

// Every metric is described in docs/metrics.md, and nothing else is.
func TestMetricsAreDocumented(t *testing.T) {
	doc := read(t, "docs/metrics.md")
	code := sources(t, "pkg", func(path string) bool { return !isTest(path) })
	registered := regexp.MustCompile(`"((?:netpol|nfqueue|packet)_[a-z_]+)"`)
	var names []string
	for _, m := range registered.FindAllStringSubmatch(code, -1) {
		names = append(names, m[1])
		if !strings.Contains(doc, "`"+m[1]+"`") {
			t.Errorf("docs/metrics.md does not describe %s", m[1])
		}
	}
	if len(names) < 20 {
		t.Fatalf("found %d metrics in the code: the search is wrong", len(names))
	}
	for _, m := range regexp.MustCompile("`((?:netpol|nfqueue|packet)_[a-z_]+)`").FindAllStringSubmatch(doc, -1) {
		if !slices.Contains(names, m[1]) {
			t.Errorf("docs/metrics.md describes %s, which does not exist", m[1])
		}
	}
}

// Every numbered statement names the tests that hold it, and they exist.
func TestStatementsAreHeldByTests(t *testing.T) {
	row := regexp.MustCompile(`(?m)^\| ((?:NP|CN|AU|FW)-\d+) \|(.*)\|([^|]*)\|$`)
	ref := regexp.MustCompile("`([a-z0-9/-]+) (Test\\w+|Fuzz\\w+)`")
	held := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(read(t, "docs/semantics.md"), -1) {
		number, tests := m[1], ref.FindAllStringSubmatch(m[3], -1)
		held[number] = len(tests) > 0
		if len(tests) == 0 {
			t.Errorf("%s names no test", number)
		}
		for _, test := range tests {
			dir, name := test[1], test[2]
			if !strings.Contains(sources(t, dir, isTest), "func "+name+"(") {
				t.Errorf("%s: there is no %s in %s", number, name, dir)
			}
		}
	}
	for _, number := range statements() {
		if !held[number] {
			t.Errorf("docs/semantics.md does not have %s", number)
		}
	}
}

// statements are the numbers of all statements.
func statements() []string {
	var out []string
	for _, r := range []struct {
		api         string
		first, last int
	}{{"NP", 1, 46}, {"NP", 50, 59}, {"CN", 1, 20}, {"CN", 30, 34}} {
		for n := r.first; n <= r.last; n++ {
			out = append(out, fmt.Sprintf("%s-%d", r.api, n))
		}
	}
	return out
}
