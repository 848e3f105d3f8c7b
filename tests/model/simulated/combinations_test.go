package simulated_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/tests/model/simulated"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
)

// recorder records the states that scenarios apply.
type recorder struct {
	netpol.Backend
	states []*netpol.State
}

func (r *recorder) Apply(ctx context.Context, state *netpol.State) error {
	err := r.Backend.Apply(ctx, state)
	r.states = append(r.states, state.Clone())
	return err
}

// TestCombinations applies pairs of the scenarios' sets of policies together, on the default model,
// and compares with the oracle. Evaluators go wrong where policies interact, and there are too many
// pairs to write by hand. All pairs take minutes, so it tests all only if NETPOL_SUITE is "full",
// otherwise one of 32, and one of 256 in short mode.
func TestCombinations(t *testing.T) {
	sets := policySets(t)
	requireEveryKind(t, sets)
	compiled, oracle := simulated.New(simulated.Compiled), simulated.New(simulated.Oracle)
	model := netpol.Model{HostNetwork: true, Hosts: []netpol.Host{netpol.Outside()}, Pods: []string{"a", "b"}}
	every, pairs, cells := 32, 0, 0
	switch {
	case os.Getenv("NETPOL_SUITE") == "full":
		every = 1
	case testing.Short():
		every = 256
	}
	for i := range sets {
		for j := range i {
			if (i+j)%every != 0 {
				continue
			}
			state := model.State()
			state.Apply(sets[i]...)
			state.Apply(sets[j]...)
			cells += compare(t, fmt.Sprintf("sets %d and %d", i, j), state, ofFamily(model, i), compiled, oracle)
			pairs++
			if t.Failed() {
				return
			}
		}
	}
	t.Logf("%d pairs of %d sets of policies, %d cells", pairs, len(sets), cells)
}

// ofFamily returns the traffic of one of the model's families.
func ofFamily(model netpol.Model, number int) []netpol.Traffic {
	all := model.Traffic()
	half := len(all) / 2
	if number%2 == 0 {
		return all[:half]
	}
	return all[half:]
}

// policySets returns the different sets of policies that the scenarios apply.
func policySets(t *testing.T) [][]netpol.Policy {
	t.Helper()
	r := &recorder{Backend: simulated.New(simulated.Compiled)}
	for _, scenario := range scenarios.All() {
		(netpol.Runner{Backend: r}).Play(t.Context(), scenario)
	}
	var sets [][]netpol.Policy
	seen := make(map[string]bool)
	for _, state := range r.states {
		set := renamed(state.AllPolicies(), len(sets))
		key, err := json.Marshal(renamed(set, 0))
		if err != nil {
			t.Fatal(err)
		}
		if len(set) > 0 && !seen[string(key)] {
			seen[string(key)] = true
			sets = append(sets, set)
		}
	}
	return sets
}

// requireEveryKind fails the test if a kind of policy is in none of the sets.
func requireEveryKind(t *testing.T, sets [][]netpol.Policy) {
	t.Helper()
	missing := slices.Clone(compile.Kinds)
	for _, set := range sets {
		for _, p := range set {
			missing = slices.DeleteFunc(missing, func(k *compile.Kind) bool { return k.Has(simulated.Object(p)) })
		}
	}
	for _, k := range missing {
		t.Errorf("no scenario has a %s", k.Name)
	}
}

// renamed returns copies with names that no other set has, except for BaselineAdminNetworkPolicy,
// which has a fixed name.
func renamed(policies []netpol.Policy, set int) []netpol.Policy {
	var copies []netpol.Policy
	for i, policy := range policies {
		policy = policy.DeepCopyObject().(netpol.Policy)
		if _, one := policy.(*v1alpha1.BaselineAdminNetworkPolicy); !one {
			policy.SetName(fmt.Sprintf("p%d-%d", i, set))
		}
		copies = append(copies, policy)
	}
	return copies
}

// compare applies a state to both backends and compares their outcomes.
func compare(t *testing.T, name string, state *netpol.State, traffic []netpol.Traffic, backends ...netpol.Backend) int {
	t.Helper()
	var tables [2]map[netpol.Traffic]*netpol.TruthTable
	for i, b := range backends {
		if err := b.Apply(t.Context(), state); err != nil {
			t.Fatal(err)
		}
		var connections []netpol.Connection
		tables[i] = make(map[netpol.Traffic]*netpol.TruthTable)
		for _, tr := range traffic {
			tables[i][tr] = netpol.NewTruthTable(state.Endpoints(), false)
			for _, from := range state.Endpoints() {
				for _, to := range state.Endpoints() {
					connections = append(connections, netpol.Connection{From: from, To: to, Traffic: tr})
				}
			}
		}
		outcomes, err := b.Probe(t.Context(), connections)
		if err != nil {
			t.Fatal(err)
		}
		for k, c := range connections {
			tables[i][c.Traffic].SetOutcome(c.From, c.To, outcomes[k])
		}
	}
	cells := 0
	for _, tr := range traffic {
		cells += len(state.Endpoints()) * len(state.Endpoints())
		if diff := tables[1][tr].Diff(tables[0][tr]); diff != "" {
			t.Errorf("%s: %s: the oracle and the evaluator differ:\n%s", name, tr, diff)
		}
	}
	return cells
}
