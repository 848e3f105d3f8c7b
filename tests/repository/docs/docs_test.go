// Package docs holds what the documentation promises about the code.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../../.."

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

// Every numbered statement is held by the tests that testdata/statements.txt names for it, or is
// cited by a case of pkg/engine/compile.
func TestStatementsAreHeldByTests(t *testing.T) {
	named := namedTests(t)
	compiled := sources(t, "pkg/engine/compile", isTest)
	written := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([A-Z]{2}-\d+) \|`).FindAllStringSubmatch(read(t, "docs/semantics.md"), -1) {
		number := m[1]
		written[number] = true
		if !named[number] && !strings.Contains(compiled, `"`+number+" ") {
			t.Errorf("testdata/statements.txt has no test for %s, and none of pkg/engine/compile cites it", number)
		}
	}
	for _, number := range statements() {
		if !written[number] {
			t.Errorf("docs/semantics.md does not have %s", number)
		}
	}
	for number := range named {
		if !written[number] {
			t.Errorf("testdata/statements.txt has %s, and docs/semantics.md does not", number)
		}
	}
}

// namedTests returns the statements that testdata/statements.txt names tests for. The tests must exist.
func namedTests(t *testing.T) map[string]bool {
	t.Helper()
	table, err := os.ReadFile("testdata/statements.txt")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if f[0] == "#" {
			continue
		}
		if len(f) < 3 {
			t.Fatalf("a line without a test: %s", line)
		}
		number, folder := f[0], f[1]
		code := sources(t, folder, isTest)
		for _, name := range f[2:] {
			if !strings.Contains(code, "func "+name+"(") {
				t.Errorf("%s: there is no %s in %s", number, name, folder)
			}
		}
		named[number] = true
	}
	return named
}

// statements are the numbers of all statements.
func statements() []string {
	var out []string
	for _, r := range []struct {
		api         string
		first, last int
	}{{"NP", 1, 46}, {"NP", 50, 66}, {"CN", 1, 20}, {"CN", 30, 42}, {"AU", 1, 8}, {"DN", 1, 5}, {"FW", 1, 4}} {
		for n := r.first; n <= r.last; n++ {
			out = append(out, fmt.Sprintf("%s-%d", r.api, n))
		}
	}
	return out
}
