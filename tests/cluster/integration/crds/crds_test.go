package crds

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// kubectl-netpol validates with the definitions of the releases. If this fails, run
// cmd/kubectl-netpol/apivalidation/update.sh.
func TestEmbeddedDefinitionsAreReleased(t *testing.T) {
	for _, release := range []Release{V017, V030} {
		files, err := release.Files(t.Context(), Experimental)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			released, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			embedded, err := os.ReadFile(filepath.Join("../../../../cmd/kubectl-netpol/apivalidation/crds", filepath.Base(file)))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(embedded, released) {
				t.Errorf("%s differs from that of %v", filepath.Base(file), release)
			}
		}
	}
}
