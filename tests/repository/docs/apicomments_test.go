package docs

import (
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestStatementsAreComparedWithTheAPI: testdata/clusternetworkpolicy.txt has, for each comment of
// the types of ClusterNetworkPolicy v1beta1, the statements of docs/semantics.md that it was
// compared with and a checksum of its words. A release that changes a comment or adds a field fails
// here until it has been compared.
func TestStatementsAreComparedWithTheAPI(t *testing.T) {
	comments := apiComments(t)
	semantics := read(t, "docs/semantics.md")
	table, err := os.ReadFile("testdata/clusternetworkpolicy.txt")
	if err != nil {
		t.Fatal(err)
	}

	compared := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		name, sum, numbers := f[0], f[1], f[2:]
		compared[name] = true
		text, ok := comments[name]
		switch {
		case !ok:
			t.Errorf("the API has no %s", name)
		case sum != checksum(text):
			t.Errorf("the comment of %s has changed; compare it with %s and write %s:\n%s", name, strings.Join(numbers, " "), checksum(text), text)
		case len(numbers) == 0:
			t.Errorf("%s: no statements; write - if the comment states nothing about packets", name)
		}
		for _, n := range numbers {
			if n != "-" && !strings.Contains(semantics, "\n| "+n+" |") {
				t.Errorf("%s: docs/semantics.md has no %s", name, n)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(comments)) {
		if !compared[name] {
			t.Errorf("compare with docs/semantics.md and write a line:\n%s %s CN-…\n%s", name, checksum(comments[name]), comments[name])
		}
	}
}

func checksum(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:8] }

// marker is a line for generators.
var marker = regexp.MustCompile(`(?m)^(\+|<network-policy-api:).*$`)

// apiComments returns the comments of the types, fields and constants of v1beta1 in one line each.
func apiComments(t *testing.T) map[string]string {
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(strings.TrimSpace(string(dir)), "apis", "v1beta1", "clusternetworkpolicy_types.go")
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]string{}
	add := func(name string, c *ast.CommentGroup) {
		if words := strings.Fields(marker.ReplaceAllString(c.Text(), "")); len(words) > 0 {
			comments[name] = strings.Join(words, " ")
		}
	}
	for _, d := range parsed.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range group.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				add(s.Names[0].Name, s.Doc)
			case *ast.TypeSpec:
				add(s.Name.Name, group.Doc)
				fields, _ := s.Type.(*ast.StructType)
				if fields == nil {
					continue
				}
				for _, f := range fields.Fields.List {
					if len(f.Names) > 0 {
						add(s.Name.Name+"."+f.Names[0].Name, f.Doc)
					}
				}
			}
		}
	}
	return comments
}
