package property

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
)

// TestEveryFaultIsAFinding: exactly the items that cannot be honoured are reported, with their
// fields.
func TestEveryFaultIsAFinding(t *testing.T) {
	items, clean := 0, 0
	forClusters(t, func(t *testing.T, _ *gen, c oracle.Cluster) {
		for _, faults := range faultsOf(c) {
			items += len(faults)
			if len(faults) == 0 {
				clean++
			}
		}
		if complaint(c) != "" {
			c = shrink(c, func(c oracle.Cluster) bool { return complaint(c) != "" })
			t.Errorf("%s\n%s", complaint(c), describe(c))
		}
	})
	t.Logf("%d faults, %d clean policies", items, clean)
}

// faultyItem is a part of a policy with its faults.
type faultyItem struct {
	policy, field string
	reasons       []oracle.Reason
	void          bool
}

// explains reports whether a finding is about the item or a field of it.
func (i faultyItem) explains(f policy.Finding) bool {
	inside, ok := strings.CutPrefix(f.Field.String(), i.field)
	return ok && (inside == "" || inside[0] == '.' || inside[0] == '[') &&
		f.Policy.String() == i.policy && slices.Contains(i.reasons, oracle.Reason(f.Reason))
}

// complaint describes an item without a finding or a finding without an item, or returns "". Items
// of void rules may be reported, all others must be.
func complaint(c oracle.Cluster) string {
	findings := clusterstate.Compile(input(c)).Findings()
	items := faultyItems(c)
	for _, item := range items {
		if !item.void && !slices.ContainsFunc(findings, item.explains) {
			return fmt.Sprintf("no finding for %+v", item)
		}
	}
	for _, f := range findings {
		if !slices.ContainsFunc(items, func(i faultyItem) bool { return i.explains(f) }) {
			return fmt.Sprintf("a finding without a fault: %v (%s)", f, f.Reason)
		}
		if inside, ok := strings.CutPrefix(f.Field.String(), fieldOf(f)); !ok || inside != "" && inside[0] != '.' && inside[0] != '[' {
			return fmt.Sprintf("a finding about %s with the place of %s", f.Field, fieldOf(f))
		}
	}
	return ""
}

// fieldOf returns the path of a finding's place.
func fieldOf(f policy.Finding) string {
	if f.Place.Part == policy.WholePart {
		if strings.HasPrefix(f.Field.String(), "spec.ingress") || strings.HasPrefix(f.Field.String(), "spec.egress") {
			return "no rule"
		}
		return f.Field.String()
	}
	path := fmt.Sprintf("spec.%v[%d]", f.Place.Direction, f.Place.Rule)
	list := map[policy.Direction]string{policy.Ingress: "from", policy.Egress: "to"}[f.Place.Direction]
	switch {
	case f.Place.Part == policy.RulePart:
		return path + ".action" // the only field of a rule apart from its lists
	case f.Place.Part == policy.PortsPart && f.Policy.Kind == "ClusterNetworkPolicy":
		list = "protocols"
	case f.Place.Part == policy.PortsPart:
		list = "ports"
	}
	if f.Place.Item == policy.AllItems {
		return path + "." + list
	}
	return fmt.Sprintf("%s.%s[%d]", path, list, f.Place.Item)
}

// faultsOf returns the faults of each policy, by its name in findings.
func faultsOf(c oracle.Cluster) map[string][]oracle.Fault {
	faults := oracle.AdminFaults(c)
	for _, p := range c.NetworkPolicies {
		faults[p.Namespace+"/"+p.Name] = oracle.Faults(c, p)
	}
	return faults
}

func faultyItems(c oracle.Cluster) []faultyItem {
	var items []faultyItem
	all := faultsOf(c)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, f := range all[name] {
			if last := len(items) - 1; last >= 0 && items[last].policy == name && items[last].field == f.Field {
				items[last].reasons = append(items[last].reasons, f.Reason)
				continue
			}
			items = append(items, faultyItem{name, f.Field, []oracle.Reason{f.Reason}, f.Void})
		}
	}
	return items
}
