package property

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
)

// TestEveryKindOfPolicyIsCompared checks that the other tests cover every kind of policy: random
// clusters have it, and no function that derives a cluster drops it.
func TestEveryKindOfPolicyIsCompared(t *testing.T) {
	tiers := map[*compile.Kind][]policy.Tier{}
	for seed := range uint64(100) {
		for _, o := range policiesOf(newGen(seed).cluster()) {
			k := compile.KindOf(o)
			tiers[k] = append(tiers[k], k.Compile(o, compile.AllFeatures(), nil).Tier)
		}
	}
	for _, k := range compile.Kinds {
		t.Run(k.Name, func(t *testing.T) {
			if tiers[k] == nil {
				t.Error("no random cluster has one")
			}
			slices.Sort(tiers[k])
			made := slices.DeleteFunc(slices.Compact(tiers[k]), func(t policy.Tier) bool { return t == policy.DefaultTier }) // policies of invalid tiers have DefaultTier
			if !slices.Equal(made, k.Tiers) {
				t.Errorf("policies are of the tiers %v, the kind says %v", made, k.Tiers)
			}
			var one, two oracle.Cluster
			first, second := k.New(), k.New()
			first.SetName("default")
			second.SetName("second")
			one.Add(first)
			two.Add(first)
			two.Add(second)
			for name, got := range map[string]oracle.Cluster{
				"Add": one, "withPoliciesOf": withPoliciesOf(oracle.Cluster{}, one), "nowOf": nowOf(oracle.Cluster{}, []*history{{now: first}}),
			} {
				if all := policiesOf(got); len(all) != 1 || all[0] != first {
					t.Errorf("%s: got %d policies", name, len(all))
				}
			}
			if all := policiesOf(clone(one)); len(all) != 1 || all[0] == first {
				t.Error("clone: the policy is not copied")
			}
			if all := policiesOf(reversed(two)); len(all) != 2 || all[0].GetName() != "second" {
				t.Error("reversed: the order is the same")
			}
			if all := policiesOf(withoutAdministrators(one)); len(all) > 0 != (!k.IsAdmin()) {
				t.Errorf("withoutAdministrators: got %d policies", len(all))
			}
			if len(faultsOf(one)) != 1 {
				t.Error("faultsOf: the policy is missing")
			}
			if !strings.Contains(describe(one), "\nkind: "+k.Name+"\n") {
				t.Error("describe: the policy is missing")
			}
		})
	}
}
