package clusterwatch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifests"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

var (
	_ Source = (*APIServer)(nil)
	_ Source = (*manifests.Source)(nil)
)

// TestSnapshotsFollowTheManifests covers the way from files to snapshots.
func TestSnapshotsFollowTheManifests(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		hidden := filepath.Join(dir, "."+name)
		if err := os.WriteFile(hidden, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(hidden, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	const cluster = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: x\n---\n" +
		"apiVersion: v1\nkind: Node\nmetadata:\n  name: n\n---\n" +
		"apiVersion: v1\nkind: Node\nmetadata:\n  name: other\n---\n" +
		"apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  namespace: x\nstatus:\n  podIPs: [{ip: 10.0.0.1}, {ip: fd00::1}]\n"
	const deny = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: deny\n  namespace: x\nspec: {}\n"
	write("cluster.yaml", cluster)
	source, err := manifests.New(dir, func([]*corev1.Pod, []*corev1.Node) {}, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	h := start(t, source, 0)
	h.until(t, "node/n ns/x pod/a=10.0.0.1=fd00::1")
	write("deny.yaml", deny)
	h.until(t, "node/n np/deny ns/x pod/a=10.0.0.1=fd00::1")
	write("cluster.yaml", "apiVersion: v1\n kind: half\n") // and a change that is seen later
	write("deny.json", `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"deny2","namespace":"x"}}`)
	h.until(t, "node/n np/deny np/deny2 ns/x pod/a=10.0.0.1=fd00::1")
	if err := os.Remove(filepath.Join(dir, "deny.yaml")); err != nil {
		t.Fatal(err)
	}
	h.until(t, "node/n np/deny2 ns/x pod/a=10.0.0.1=fd00::1")
}

func TestSnapshotsFollowTheManifestsOfEveryKind(t *testing.T) {
	dir := t.TempDir()
	const policies = "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata:\n  name: p\n---\n" +
		"apiVersion: policy.networking.k8s.io/v1alpha1\nkind: BaselineAdminNetworkPolicy\nmetadata:\n  name: default\n---\n" +
		"apiVersion: policy.networking.k8s.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata:\n  name: q\n---\n" +
		"apiVersion: v1\nkind: Node\nmetadata:\n  name: n\n---\n" +
		"apiVersion: v1\nkind: Node\nmetadata:\n  name: other\nstatus:\n  addresses: [{type: InternalIP, address: 192.168.0.2}]\n"
	if err := os.WriteFile(filepath.Join(dir, "policies.yaml"), []byte(policies), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		kinds []*compile.Kind
		want  string
	}{
		{nil, "node/n"},
		{[]*compile.Kind{compile.KindAdminNetworkPolicy, compile.KindClusterNetworkPolicy}, "anp/p cnp/q node/n node/other=192.168.0.2"},
		{allKinds, "anp/p banp/default cnp/q node/n node/other=192.168.0.2"},
	} {
		t.Run(fmt.Sprint("with ", tc.kinds), func(t *testing.T) {
			source, err := manifests.New(dir, func([]*corev1.Pod, []*corev1.Node) {}, prometheus.NewRegistry())
			if err != nil {
				t.Fatal(err)
			}
			startWith(t, source, Config{Kinds: tc.kinds}).until(t, tc.want)
		})
	}
}
