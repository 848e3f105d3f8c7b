package layering

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// The initialiser of an if or a switch only makes what the condition reads. A change of anything
// else is easily overlooked there and stands on a line of its own.
func TestConditionsHaveNoSideEffects(t *testing.T) {
	const root = "../../.."
	files := token.NewFileSet()
	for _, dir := range []string{"cmd", "pkg", "release", "tests"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") {
				return err
			}
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.IfStmt:
					checkInitialiser(t, files, n.Init, n.Cond)
				case *ast.SwitchStmt:
					checkInitialiser(t, files, n.Init, n.Tag)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func checkInitialiser(t *testing.T, files *token.FileSet, init ast.Stmt, condition ast.Expr) {
	t.Helper()
	assignment, ok := init.(*ast.AssignStmt)
	if init == nil || ok && (assignment.Tok == token.DEFINE || reads(condition, assignment.Lhs)) {
		return
	}
	t.Errorf("%s: a side effect before a condition: put it on a line of its own", files.Position(init.Pos()))
}

// reads reports whether an expression contains one of the variables.
func reads(e ast.Expr, variables []ast.Expr) bool {
	names := map[string]bool{}
	for _, v := range variables {
		if id, ok := v.(*ast.Ident); ok {
			names[id.Name] = true
		}
	}
	found := false
	if e != nil {
		ast.Inspect(e, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			found = found || ok && names[id.Name]
			return true
		})
	}
	return found
}
