package manifests

import (
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// TestTwoVersionsOfOneObjectInTwoFiles: the first file wins, and the second is reported.
func TestTwoVersionsOfOneObjectInTwoFiles(t *testing.T) {
	s := Source{files: map[string]*file{}}
	for name, text := range map[string]string{"a.yaml": strings.Replace(clusterPolicy, "v1beta1", "v1alpha2", 1), "b.yaml": clusterPolicy} {
		c, err := parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		s.files[name] = &file{manifests: c.manifests}
	}
	faults := map[string]fault{}
	merged := s.merge(faults)[compile.KindClusterNetworkPolicy]
	const want = "b.yaml: line 1: ClusterNetworkPolicy cluster of version v1beta1 is already in a.yaml as v1alpha2, and is the same object: remove one of them"
	if got := "b.yaml: " + faults["b.yaml"].Error(); len(faults) != 1 || got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(merged) != 1 {
		t.Errorf("read %v", merged)
	}
}
