// Package property compares the real evaluator with the oracle on random small
// clusters: every packet must get the same answer, every order of events must
// lead to the same answers, and what is reported must be what is enforced.
//
// A run prints its seed. PROPERTY_SEED repeats it, PROPERTY_TIME (a duration,
// such as 10m) makes it longer or shorter.
package property

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/oracle"
)

// here is the node that judges.
const here, there = "here", "there"

// runTime is how long all properties together may take.
func runTime(t *testing.T) time.Duration {
	text := os.Getenv("PROPERTY_TIME")
	switch {
	case text == "" && testing.Short():
		return time.Second
	case text == "":
		return 5 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("PROPERTY_TIME: %v", err)
	}
	return d
}

// firstSeed is the seed of the first cluster; the next ones count up from it.
func firstSeed(t *testing.T) uint64 {
	text := os.Getenv("PROPERTY_SEED")
	if text == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("PROPERTY_SEED: %v", err)
	}
	return seed
}

// forClusters hands random clusters to a property until its share of the run
// time is over, or the property fails. A cluster depends on its seed alone, and
// so do the choices that the property makes with g.
func forClusters(t *testing.T, share float64, property func(t *testing.T, g *gen, c oracle.Cluster)) {
	t.Helper()
	first := firstSeed(t)
	clusters := 0
	end := time.Now().Add(time.Duration(share * float64(runTime(t))))
	for seed := first; !t.Failed() && (seed == first || time.Now().Before(end)); seed++ {
		g := newGen(seed)
		property(t, g, g.cluster())
		clusters++
		if t.Failed() {
			t.Logf("repeat with PROPERTY_SEED=%d", seed)
		}
	}
	t.Logf("%d clusters from seed %d", clusters, first)
}
