package main

import (
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/speed/scale/model"
)

// TestNodesAskForTheirPart: the clusters are so small that their figures are known. Each
// node has pods of most namespaces or, with a hundred times as many namespaces, of only a
// few.
func TestNodesAskForTheirPart(t *testing.T) {
	few := simulated(model.Config{Nodes: 40, Pods: 1200, Namespaces: 20})
	manyNamespaces := simulated(model.Config{Nodes: 400, Pods: 12000, Namespaces: 2000})
	for _, unit := range []string{"objects-percent", "events-percent", "bytes-percent"} {
		if f, m := few.Value(unit), manyNamespaces.Value(unit); f < 50 || m > 10 || m <= 0 {
			t.Errorf("%.1f and %.1f %s, want at least 50 and at most 10", f, m, unit)
		}
	}

	everyone := simulated(model.Config{Nodes: 40, Pods: 1200, Namespaces: 100, Everyone: 10})
	if all := everyone.Value("watch-all-percent"); all < 50 {
		t.Errorf("%.1f %% of nodes watch all pods, want most", all)
	}
}
