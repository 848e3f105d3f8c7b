package crds

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The definitions that kubectl-netpol validates with are those of the releases. If
// this fails, run pkg/apivalidation/update.sh.
func TestEmbeddedDefinitionsAreReleased(t *testing.T) {
	for _, release := range []Release{V017, V020} {
		files, err := release.Files(t.Context(), Experimental)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			released, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			embedded, err := os.ReadFile(filepath.Join("../../../pkg/apivalidation/crds", filepath.Base(file)))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(embedded, released) {
				t.Errorf("%s differs from that of %v", filepath.Base(file), release)
			}
		}
	}
}
