package property

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
)

// input is a cluster as node here knows it.
func input(c oracle.Cluster) clusterstate.Input {
	return clusterstate.Input{
		NodeName:   here,
		Features:   compile.Features{EndPort: c.EndPort, SCTP: c.SCTP, Nodes: c.NodePeers, DomainNames: c.DomainNames, IngressByAddress: c.IngressByAddress, ServiceAccounts: c.ServiceAccounts, CIDRGroups: c.GroupPeers},
		Namespaces: c.Namespaces,
		Pods:       c.Pods,
		Nodes:      c.Nodes,
		CIDRGroups: c.CIDRGroups,
		Policies:   policiesOf(c),
	}
}

// disagreement describes how the evaluator's decision differs from the oracle's, or returns "".
func disagreement(got policy.Decision, want oracle.Decision) string {
	if got.Action == policy.Pass || got.Allowed() != want.Allowed() {
		return "verdict"
	}
	egress, ingress := want.Egress.Outcome == oracle.Denied, want.Ingress.Outcome == oracle.Denied
	if egress != ingress && got.Direction == policy.Ingress != ingress {
		return "direction of the denial"
	}
	return ""
}

// decisions returns both decisions about a packet if it is steered: packets from a pod too new to
// be known to its node are not.
func decisions(c oracle.Cluster, s *policy.Snapshot, q question) (got policy.Decision, want oracle.Decision, asked bool) {
	if q.toHost && s.Endpoint(q.Src.Addr()) == nil {
		return got, want, false
	}
	return s.Evaluate(q.query()), oracle.Evaluate(c, here, q.oracleQuery()), true
}

// tally counts the kinds of decisions: a property that only sees packets that no agent evaluates
// proves nothing.
type tally map[string]int

func (n tally) add(d oracle.Decision) {
	n[fmt.Sprintf("egress %v, ingress %v", d.Egress.Outcome, d.Ingress.Outcome)]++
	for _, j := range []oracle.DirectionDecision{d.Egress, d.Ingress} {
		if kind, _, ok := strings.Cut(j.Why, "NetworkPolicy"); ok {
			n[fmt.Sprintf("a direction %v by %sNetworkPolicy", j.Outcome, kind)]++
		}
	}
}

func (n tally) String() string {
	var lines []string
	for _, kind := range slices.Sorted(maps.Keys(n)) {
		lines = append(lines, fmt.Sprintf("%8d %s", n[kind], kind))
	}
	return strings.Join(lines, "\n")
}

func TestVerdictsAreThoseOfTheOracle(t *testing.T) {
	counts := tally{}
	forClusters(t, func(t *testing.T, g *gen, c oracle.Cluster) {
		compareVerdicts(t, g, c, counts)
	})
	t.Logf("packets:\n%v", counts)
}

// compareVerdicts compares both for many packets and describes the first disagreement.
func compareVerdicts(t *testing.T, g *gen, c oracle.Cluster, counts tally) {
	t.Helper()
	snapshot := clusterstate.Compile(input(c))
	for _, q := range g.questions(c) {
		got, want, asked := decisions(c, snapshot, q)
		if !asked {
			continue
		}
		counts.add(want)
		if disagreement(got, want) != "" {
			t.Error(explain(c, q))
			return
		}
	}
}

// explain shrinks a cluster with a disagreement about a packet and describes the result.
func explain(c oracle.Cluster, q question) string {
	c = shrink(c, func(c oracle.Cluster) bool {
		got, want, asked := decisions(c, clusterstate.Compile(input(c)), q)
		return asked && disagreement(got, want) != ""
	})
	got, want, _ := decisions(c, clusterstate.Compile(input(c)), q)
	return fmt.Sprintf("%s of %v on node %s differs\n got %v\nwant %v\n%s", disagreement(got, want), q, here, got, want, describe(c))
}

func FuzzVerdict(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("any bytes choose a cluster"))
	f.Fuzz(func(t *testing.T, data []byte) {
		g := newGenFromBytes(data)
		compareVerdicts(t, g, g.cluster(), tally{})
	})
}
