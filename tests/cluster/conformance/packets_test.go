package main

import (
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/tests/cluster/conformance/cluster"
)

// The backend takes policies of every kind that the agent reads.
func TestStateHasPoliciesOfEveryKind(t *testing.T) {
	for _, kind := range compile.Kinds {
		state, err := stateOf(cluster.Objects{Policies: []compile.Object{kind.New()}})

		if err != nil || len(state.AllPolicies()) != 1 {
			t.Errorf("%s: got %v, %v, want one policy", kind.Name, state, err)
		}
	}
}
