// Package property compares the real evaluator with the oracle on random small
// clusters: every packet must get the same answer, every order of events must
// lead to the same answers, and what is reported must be what is enforced.
//
// Without any settings the clusters are always the same ones. PROPERTY_CLUSTERS is how
// many each property gets, and PROPERTY_SEED is the seed of the first one.
package property

import (
	"os"
	"strconv"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/oracle"
)

// here is the node that evaluates.
const here, there = "here", "there"

// What a run without settings asks: clusters of the seeds from 1 on, and those that
// once found that evaluator and oracle disagreed. They are different clusters by now,
// and TestPastDisagreements has what they were.
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

// forClusters hands random clusters to a property until the property fails. A
// cluster depends on its seed alone, and so do the choices that the property makes
// with g. Long runs tell how far they are.
func forClusters(t *testing.T, property func(t *testing.T, g *gen, c oracle.Cluster)) {
	t.Helper()
	const report = 1000
	all := seeds(t)
	for i, seed := range all {
		g := newGen(seed)
		property(t, g, g.cluster())
		if t.Failed() {
			t.Fatalf("cluster %d of %d; repeat with\n\tPROPERTY_SEED=%d PROPERTY_CLUSTERS=1 go test ./tests/property -run '^%s$'", i+1, len(all), seed, t.Name())
		}
		if (i+1)%report == 0 {
			t.Logf("%d of %d clusters", i+1, len(all))
		}
	}
	t.Logf("%d clusters from seed %d", len(all), all[0])
}
