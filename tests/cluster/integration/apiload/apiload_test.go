package main

import (
	"io"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/tests/speed/scale/model"
)

// TestSmallCluster checks that agents list the objects that their watches select, regardless
// of cost.
func TestSmallCluster(t *testing.T) {
	o := options{
		Config: model.Config{Nodes: 40, Pods: 400, Namespaces: 50},
		rate:   20, during: time.Second, maxWatches: clusterwatch.MaxNeededWatches, lists: 2,
	}
	all, err := o.measureAll(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	value := func(way int, row string) float64 { return all[way].values[slices.Index(rows, row)] }
	if got := value(1, "pods in lists of an agent"); got < 400 || got > 450 {
		t.Errorf("an agent that watches all pods lists %v of 400", got)
	}
	if all, needed := value(1, "pods in lists of an agent"), value(2, "pods in lists of an agent"); needed == 0 || needed >= all {
		t.Errorf("an agent that watches needed pods lists %v, one that watches all pods %v", needed, all)
	}
	if got := value(0, "events/s"); got != 0 {
		t.Errorf("without agents: %v events/s", got)
	}
}
