package property

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
)

// audited returns c with annotated copies of its namespaces and policies.
func (g *gen) audited(c oracle.Cluster) oracle.Cluster {
	c = clone(c)
	for _, o := range objectsOf(c) {
		switch o.(type) {
		case *corev1.Pod, *corev1.Node:
		default:
			g.Enforcement(o)
		}
	}
	return c
}

// ifEnforced returns the snapshot of a cluster whose audited policies are enforced.
func ifEnforced(s *policy.Snapshot) *policy.Snapshot {
	if audit := s.Audit(); audit != nil {
		return audit
	}
	return s
}

// auditFault describes how the enforced or the audited decision differs from the oracle's, or
// returns "".
func auditFault(s *policy.Snapshot, c oracle.Cluster, q question, counts map[string]int) string {
	enforced := oracle.Enforced(c)
	got, want, asked := decisions(enforced, s, q)
	if asked && disagreement(got, want) != "" {
		return fmt.Sprintf("enforced: got %v, want %v", got, want)
	}
	would, wouldWant, asked := decisions(c, ifEnforced(s), q)
	if asked && disagreement(would, wouldWant) != "" {
		return fmt.Sprintf("if enforced: got %v, want %v", would, wouldWant)
	}
	again, audited := s.EvaluateAudited(q.query())
	switch {
	case !asked:
		return ""
	case again != got:
		return fmt.Sprintf("EvaluateAudited decides %v, Evaluate %v", again, got)
	case !audited && would.Allowed() != got.Allowed() && would.Reason != policy.UnknownPod:
		return fmt.Sprintf("no audited policy selects a pod, and the decision is %v instead of %v", got, would)
	}
	if got.Allowed() != would.Allowed() {
		counts[fmt.Sprintf("%v, would %v", got.Action, would.Action)]++
	}
	return ""
}

// TestAuditedPoliciesAreNotEnforced: AU-1 to AU-4. Decisions equal those of the oracle for the
// cluster without audited policies, and decisions of Audit equal those for the cluster with them.
func TestAuditedPoliciesAreNotEnforced(t *testing.T) {
	counts := map[string]int{}
	forClusters(t, func(t *testing.T, g *gen, c oracle.Cluster) {
		c = g.audited(c)
		s := clusterstate.Compile(input(c))
		for _, q := range g.questions(c) {
			if fault := auditFault(s, c, q, counts); fault != "" {
				t.Errorf("%v: %s\n%s", q, fault, describe(c))
				return
			}
		}
		compareAuditedAddresses(t, s, c)
	})
	t.Log(counts)
	for _, what := range []string{"allow, would deny", "deny, would allow"} {
		if counts[what] == 0 {
			t.Errorf("no packet: %s", what)
		}
	}
}

// compareAuditedAddresses checks that pods which only audited policies select are listed
// separately.
func compareAuditedAddresses(t *testing.T, s *policy.Snapshot, c oracle.Cluster) {
	t.Helper()
	enforced := oracle.Enforced(c)
	for name, selection := range selections {
		all, want := selection.want(c), selection.want(enforced)
		if name == "domain names" {
			want = all // decisions of audited policies depend on them, too
		}
		if got := selection.got(s); !slices.Equal(got, want) {
			t.Errorf("selected for %s are %v, want %v\n%s", name, got, want, describe(c))
		}
		added := slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool { return slices.Contains(want, a) })
		var got []netip.Addr
		switch name {
		case "ingress":
			got = s.AuditedIn(policy.Ingress)
		case "egress":
			got = s.AuditedIn(policy.Egress)
		case "the node":
			got = s.AuditedToHost()
		}
		if !slices.Equal(got, added) {
			t.Errorf("audited for %s are %v, want %v\n%s", name, got, added, describe(c))
		}
	}
}

// TestAuditingAllEnforcesNothing: AU-5.
func TestAuditingAllEnforcesNothing(t *testing.T) {
	forClusters(t, func(t *testing.T, g *gen, c oracle.Cluster) {
		in := input(c)
		in.Audit = true
		s, enforced := clusterstate.Compile(in), clusterstate.Compile(input(c))
		for _, q := range g.questions(c) {
			if d := s.Evaluate(q.query()); d != (policy.Decision{Action: policy.Allow, Direction: d.Direction, Reason: d.Reason}) {
				t.Errorf("%v: %v\n%s", q, d, describe(c))
			}
			if got, want := ifEnforced(s).Evaluate(q.query()), enforced.Evaluate(q.query()); got.Action != want.Action {
				t.Errorf("%v would be %v, want %v\n%s", q, got, want, describe(c))
			}
		}
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			if len(s.Selected(d))+len(s.Ranges(d)) > 0 {
				t.Errorf("packets of %v and %v are held\n%s", s.Selected(d), s.Ranges(d), describe(c))
			}
		}
	})
}
