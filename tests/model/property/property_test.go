// Package property compares the real evaluator with the oracle on small random clusters: every
// packet must get the same decision, every order of events must lead to the same decisions, and
// findings must agree with enforcement.
//
// By default the clusters are always the same. PROPERTY_CLUSTERS sets the number of clusters for
// each property, PROPERTY_SEED the seed of the first one.
package property

import (
	"os"
	"strconv"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
)

// here is the evaluating node.
const here, there = "here", "there"

// A run with default settings uses the seeds from 1 on, and those that once found disagreements.
// They generate different clusters by now; TestPastDisagreements has the original ones.
const defaultClusters = 250

var pastSeeds = []uint64{13043964403359885339, 8193503906538744289, 658317886254291}

// seeds returns the seeds of the clusters of one property.
func seeds(t *testing.T) []uint64 {
	t.Helper()
	first, given := uintSetting(t, "PROPERTY_SEED", 1)
	n, _ := uintSetting(t, "PROPERTY_CLUSTERS", defaultClusters)
	var all []uint64
	for i := range n {
		all = append(all, first+i)
	}
	if !given {
		all = append(all, pastSeeds...)
	}
	return all
}

// uintSetting reads a number from the environment.
func uintSetting(t *testing.T, name string, otherwise uint64) (n uint64, given bool) {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n, true
}

// forClusters passes random clusters to a property until it fails. A cluster depends only on its
// seed, as do the property's choices with g. Long runs log their progress.
func forClusters(t *testing.T, property func(t *testing.T, g *gen, c oracle.Cluster)) {
	t.Helper()
	const report = 1000
	all := seeds(t)
	for i, seed := range all {
		g := newGen(seed)
		property(t, g, g.cluster())
		if t.Failed() {
			t.Fatalf("cluster %d of %d; repeat with\n\tPROPERTY_SEED=%d PROPERTY_CLUSTERS=1 go test ./tests/model/property -run '^%s$'", i+1, len(all), seed, t.Name())
		}
		if (i+1)%report == 0 {
			t.Logf("%d of %d clusters", i+1, len(all))
		}
	}
	t.Logf("%d clusters from seed %d", len(all), all[0])
}
