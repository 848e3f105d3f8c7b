package property

import (
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
)

// TestOrderOfObjectsIsIrrelevant: NP-54. Reversing swaps every pair of objects.
func TestOrderOfObjectsIsIrrelevant(t *testing.T) {
	forClusters(t, func(t *testing.T, g *gen, c oracle.Cluster) {
		questions := g.questions(c)
		diff := func(c oracle.Cluster) string {
			return difference(clusterstate.Compile(input(c)), clusterstate.Compile(input(reversed(c))), questions)
		}
		if diff(c) != "" {
			c = shrink(c, func(c oracle.Cluster) bool { return diff(c) != "" })
			t.Errorf("in this order and reversed: %s\n%s", diff(c), describe(c))
		}
	})
}

func reversed(c oracle.Cluster) oracle.Cluster {
	c = clone(c)
	slices.Reverse(c.Namespaces)
	slices.Reverse(c.Pods)
	slices.Reverse(c.Nodes)
	slices.Reverse(c.CIDRGroups)
	slices.Reverse(c.NetworkPolicies)
	slices.Reverse(c.AdminNetworkPolicies)
	slices.Reverse(c.BaselineAdminNetworkPolicies)
	slices.Reverse(c.ClusterNetworkPolicies)
	return c
}
