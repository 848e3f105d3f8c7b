package main

import (
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/scale/model"
)

// TestNodesAskForTheirPart has clusters so small that their figures are known: each node has
// pods of most namespaces, but of few namespaces of a cluster with a hundred times as many.
func TestNodesAskForTheirPart(t *testing.T) {
	few := simulated(model.Config{Nodes: 40, Pods: 1200, Namespaces: 20})
	many := simulated(model.Config{Nodes: 400, Pods: 12000, Namespaces: 2000})
	for _, unit := range []string{"objects-percent", "events-percent", "bytes-percent"} {
		if f, m := few.Value(unit), many.Value(unit); f < 50 || m > 10 || m <= 0 {
			t.Errorf("%.1f and %.1f %s, want at least 50 and at most 10", f, m, unit)
		}
	}
	everyone := simulated(model.Config{Nodes: 40, Pods: 1200, Namespaces: 100, Everyone: 10})
	if all := everyone.Value("watch-all-percent"); all < 50 {
		t.Errorf("%.1f %% of nodes watch all pods, want most", all)
	}
}
