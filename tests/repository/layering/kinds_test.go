package layering

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// tableOfKinds is where compile.Kinds is.
const tableOfKinds = "pkg/engine/compile/kind.go"

// adapter is the file of the kinds of v1alpha1.
const adapter = "pkg/engine/compile/v1alpha1.go"

// converter rewrites the kinds of v1alpha1 and goes with them.
const converter = "cmd/kubectl-netpol/convert.go"

// The programs name a kind of administrators' policies in its own file and in the table of
// kinds only, so that a kind comes and goes with these two. Tests may name what they are
// about, and below tests/ each tool has a view of the API of its own: truth tables have an
// API of their own, and the oracle shares nothing with the programs.
func TestKindsAreNamedInTheirFileAndTheTableOnly(t *testing.T) {
	for _, k := range compile.Kinds {
		if !k.IsAdmin() {
			continue // every cluster has it, and the others are described by it
		}
		t.Run(k.Name, func(t *testing.T) {
			own := "pkg/engine/compile/" + strings.ToLower(k.Name) + ".go"
			if k.Resource.Version == "v1alpha1" {
				own = adapter
			}
			plural := strings.TrimSuffix(k.Name, "y") + "ies"
			name := regexp.MustCompile(`\b(Kind)?(` + k.Name + `|` + plural + `|` + k.Resource.Resource + `)\b`)
			files := filesThatMatch(t, name)
			files = slices.DeleteFunc(files, func(file string) bool {
				return file == "pkg/engine/proposed/"+strings.ToLower(k.Name)+".go" || // its Go type
					file == converter ||
					file == adapter && own != adapter // which makes its rules of those of the older kinds
			})
			want := slices.Sorted(slices.Values([]string{own, tableOfKinds}))
			if !slices.Equal(files, want) {
				t.Errorf("%s is named in %q, want %q: a property of the kind belongs to its descriptor (compile.Kind)", k.Name, files, want)
			}
		})
	}
}

// filesThatMatch returns the Go files of the programs and of what they are released with,
// without tests, that contain a match. They are sorted.
func filesThatMatch(t *testing.T, pattern *regexp.Regexp) []string {
	t.Helper()
	const root = "../../.."
	read := 0
	var found []string
	for _, dir := range []string{"cmd", "pkg", "release"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			read++
			if pattern.Match(bytes.ReplaceAll(text, []byte("_"), []byte(" "))) {
				name, err := filepath.Rel(root, path)
				found = append(found, name)
				return err
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if read < 200 {
		t.Fatalf("found %d Go files: the search is wrong", read)
	}
	slices.Sort(found)
	return found
}
