package property

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/tests/oracle"
)

// input is what the node called here knows of a cluster.
func input(c oracle.Cluster) clusterstate.Input {
	return clusterstate.Input{
		NodeName:   here,
		Features:   compile.Features{EndPort: c.EndPort, SCTP: c.SCTP, Nodes: c.NodePeers, DomainNames: c.DomainNames},
		Namespaces: c.Namespaces,
		Pods:       c.Pods,
		Nodes:      c.Nodes,
		Policies:   policiesOf(c),
	}
}

// disagreement says in which way the evaluator's decision is not the oracle's,
// or nothing.
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

// decisions asks both about a packet, if the evaluator would be asked: what a pod
// too new to be known sends to its node is not steered.
func decisions(c oracle.Cluster, s *policy.Snapshot, q question) (got policy.Decision, want oracle.Decision, asked bool) {
	if q.toHost && s.Endpoint(q.Src.Addr()) == nil {
		return got, want, false
	}
	return s.Evaluate(q.query()), oracle.Evaluate(c, here, q.oracleQuery()), true
}

// tally counts what kinds of answers the packets had: a property that only sees
// packets that no agent evaluates proves nothing.
type tally map[string]int

func (n tally) add(d oracle.Decision) {
	n[fmt.Sprintf("egress %v, ingress %v", d.Egress.Outcome, d.Ingress.Outcome)]++
	for _, j := range []oracle.DirectionDecision{d.Egress, d.Ingress} {
		if by, _, ok := strings.Cut(j.Why, "NetworkPolicy"); ok {
			n[fmt.Sprintf("a direction %v by %sNetworkPolicy", j.Outcome, by)]++
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

// compareVerdicts asks both about many packets, and tells the first one that
// they do not agree on.
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

// explain shrinks a cluster in which a packet gets two answers, and describes
// what is left.
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
