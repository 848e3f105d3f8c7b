package servers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestEverySpecOfNetworkPoliciesIsInTheTable: the table has exactly the specs of the newest
// Kubernetes, so a new release shows which of them need a scenario.
func TestEverySpecOfNetworkPoliciesIsInTheTable(t *testing.T) {
	source, err := Newest.source(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kubernetes, err := output(t.Context(), source, "go", "list", "-m", "-f", "{{.Dir}}", Newest.module)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(kubernetes, "test", "e2e", "network", "netpol", "network_policy*.go"))
	if err != nil || kubernetes == "" || len(files) == 0 {
		t.Fatalf("no specs in %q (%v): go run ./servers/build downloads them", kubernetes, err)
	}
	table, err := os.ReadFile("../../../netpol/scenarios/testdata/kubernetes-specs.txt")
	if err != nil {
		t.Fatal(err)
	}

	var got, want []string
	for _, file := range files {
		want = append(want, specs(t, file)...)
	}
	for line := range strings.Lines(string(table)) {
		if spec := strings.TrimSuffix(line, "\n"); spec != "" && !strings.HasPrefix(spec, "#") && !strings.HasPrefix(spec, "\t") {
			got = append(got, spec)
		}
	}

	for _, spec := range want {
		if !slices.Contains(got, spec) {
			t.Errorf("the table lacks %q", spec)
		}
	}
	for _, spec := range got {
		if !slices.Contains(want, spec) {
			t.Errorf("Kubernetes has no %q", spec)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d specs in the table, %d in Kubernetes", len(got), len(want))
	}
}

// specs returns the names of the specs in a file: the words of SIGDescribe and those of It.
func specs(t *testing.T, file string) []string {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	prefix := ""
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch f, _ := call.Fun.(*ast.SelectorExpr); {
		case f == nil:
		case f.Sel.Name == "SIGDescribe":
			prefix = joined(call.Args)
		case f.Sel.Name == "It":
			names = append(names, prefix+" "+joined(call.Args[:1]))
		}
		return true
	})
	return names
}

// joined returns string literals, and the last names of selectors such as feature.SCTPConnectivity, as
// one text.
func joined(args []ast.Expr) string {
	var all []string
	for _, arg := range args {
		switch a := arg.(type) {
		case *ast.BasicLit:
			if s, err := strconv.Unquote(a.Value); err == nil {
				all = append(all, s)
			}
		case *ast.SelectorExpr:
			all = append(all, a.Sel.Name)
		}
	}
	return strings.Join(all, " ")
}
