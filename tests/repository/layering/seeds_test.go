package layering

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// freshSeeds are the files that may draw a fresh seed, with the reason.
var freshSeeds = map[string]string{
	"tests/speed/scale/flip.go":        "a measurement, which begins at any time of an interval; it asserts nothing",
	"tests/packets/netns/soak_test.go": "a long run, only where SOAK asks for one; it prints the seed, and SOAK_SEED repeats it",
}

// seeded are the names of math/rand that do not use its global generator, which nothing
// can repeat.
var seeded = []string{"New", "NewChaCha8", "NewPCG", "NewSource", "NewZipf", "ChaCha8", "PCG", "Rand", "Source", "Source64", "Zipf"}

// What a test draws is the same in each run, so that it fails in each run or never.
func TestTestsDrawNoFreshSeeds(t *testing.T) {
	found := map[string]bool{}
	read := 0
	for _, dir := range []string{"cmd", "pkg", "release", "tests"} {
		err := filepath.WalkDir(filepath.Join("../../..", dir), func(path string, _ fs.DirEntry, err error) error {
			name := strings.TrimPrefix(filepath.ToSlash(path), "../../../")
			if err != nil || !strings.HasSuffix(name, ".go") || dir != "tests" && !strings.HasSuffix(name, "_test.go") {
				return err
			}
			read++
			for _, use := range globalRandom(t, path) {
				found[name] = true
				if freshSeeds[name] == "" {
					t.Errorf("%s: %s differs between runs; use rand.New(rand.NewPCG(1, 0))", name, use)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if read < 300 {
		t.Fatalf("found %d Go files of tests: the search is wrong", read)
	}
	for name := range freshSeeds {
		if !found[name] {
			t.Errorf("%s draws no fresh seed, and needs no exception", name)
		}
	}
}

// globalRandom returns the uses of the global generator of math/rand in a file.
func globalRandom(t *testing.T, path string) []string {
	t.Helper()
	fileset := token.NewFileSet()
	file, err := parser.ParseFile(fileset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	name := ""
	for _, i := range file.Imports {
		if p, err := strconv.Unquote(i.Path.Value); err == nil && (p == "math/rand" || p == "math/rand/v2") {
			name = "rand"
			if i.Name != nil {
				name = i.Name.Name
			}
		}
	}
	var uses []string
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && name != "" && x.Name == name && !slices.Contains(seeded, s.Sel.Name) {
			uses = append(uses, name+"."+s.Sel.Name)
		}
		return true
	})
	return uses
}
