package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/status"
)

// reasons returns the string constants of a file that are named after their
// value, which is how reasons and types of conditions are written.
func reasons(t *testing.T, path string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			if i >= len(spec.Values) {
				continue
			}
			if value, ok := spec.Values[i].(*ast.BasicLit); ok && value.Value == strconv.Quote(name.Name) {
				names = append(names, name.Name)
			}
		}
		return true
	})
	return names
}

// Every reason and every type of condition is described in docs/status.md, and
// no reason that does not exist.
func TestReasonsAreDocumented(t *testing.T) {
	doc := read(t, "docs/status.md")
	types := []string{"Accepted", "PartialFailure", "Failure", "Enforced"}
	all := slices.Concat(reasons(t, "pkg/engine/policy/policy.go"), reasons(t, "pkg/status/conditions.go"), reasons(t, "pkg/status/enforced/enforced.go"), reasons(t, "pkg/status/gate/gate.go"))
	var described []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|").FindAllStringSubmatch(doc, -1) {
		described = append(described, m[1])
	}
	for _, name := range types {
		if !slices.Contains(all, name) {
			t.Fatalf("found %v in the code, without %s: the search is wrong", all, name)
		}
	}
	for _, name := range all {
		if !slices.Contains(types, name) && !slices.Contains(described, name) {
			t.Errorf("docs/status.md does not describe %s", name)
		}
	}
	for _, name := range described {
		if !slices.Contains(all, name) {
			t.Errorf("docs/status.md describes %s, which does not exist", name)
		}
	}
}

// The annotations that readers look for with kubectl are those that the writer writes.
func TestStatusNamesTheAnnotations(t *testing.T) {
	text := read(t, "docs/status.md")
	dotted := `.metadata.annotations.` + strings.ReplaceAll(status.SummaryAnnotation, ".", `\.`)
	for _, want := range []string{`["` + status.Annotation + `"]`, dotted} {
		if !strings.Contains(text, want) {
			t.Errorf("docs/status.md does not have %s", want)
		}
	}
}
