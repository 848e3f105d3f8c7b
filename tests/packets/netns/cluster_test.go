// Package netns tests the agent's binary with the kernel: nodes are network namespaces, and
// the tests send real packets. They need root, nft and ip; without these they are skipped
// unless NETNS_REQUIRED is set.
package netns

import (
	"os"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// cluster is a labtest.Cluster with helpers for this package.
type cluster struct{ *labtest.Cluster }

func newCluster(t *testing.T, nodes int, pods ...string) *cluster {
	t.Helper()
	return &cluster{labtest.NewCluster(t, nodes, pods...)}
}
