package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// TestTwoVersionsOfOneObjectInTwoFiles: the first file wins, and the second is reported.
func TestTwoVersionsOfOneObjectInTwoFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.yaml": strings.Replace(clusterPolicy, "v1beta1", "v1alpha2", 1), "b.yaml": clusterPolicy} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o, err := Read([]string{dir}, nil)
	const want = "b.yaml:1: ClusterNetworkPolicy cluster of version v1beta1 is already in "
	if err == nil || !strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), "a.yaml as v1alpha2, and is the same object: remove one of them") {
		t.Errorf("got %v, want %s…", err, want)
	}
	if len(o.Policies) != 1 || compile.KindOf(o.Policies[0]) != compile.KindClusterNetworkPolicy {
		t.Errorf("read %v", o.Policies)
	}
}
