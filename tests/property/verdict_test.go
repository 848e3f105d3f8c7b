package property

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/tests/oracle"
)

// input is what the node called here is told of a cluster.
func input(c oracle.Cluster) compile.Input {
	return compile.Input{
		NodeName:        here,
		Features:        compile.Features{EndPort: c.EndPort, SCTP: c.SCTP},
		Namespaces:      c.Namespaces,
		Pods:            c.Pods,
		Nodes:           c.Nodes,
		NetworkPolicies: c.NetworkPolicies,
	}
}

// directions pairs the words of the evaluator with those of the API.
var directions = map[policy.Direction]networkingv1.PolicyType{
	policy.Ingress: networkingv1.PolicyTypeIngress,
	policy.Egress:  networkingv1.PolicyTypeEgress,
}

// disagreement says in which way the evaluator's decision is not the oracle's,
// or nothing.
func disagreement(got policy.Decision, want oracle.Decision) string {
	if got.Verdict == policy.Pass || (got.Verdict == policy.Allow) != want.Allowed() {
		return "verdict"
	}
	egress, ingress := want.Egress.Outcome == oracle.Denied, want.Ingress.Outcome == oracle.Denied
	if egress != ingress && got.Direction == policy.Ingress != ingress {
		return "direction of the denial"
	}
	return ""
}

// tally counts what kinds of answers the packets had: a property that only sees
// packets that nobody judges proves nothing.
type tally map[string]int

func (n tally) add(d oracle.Decision) {
	n[fmt.Sprintf("egress %v, ingress %v", d.Egress.Outcome, d.Ingress.Outcome)]++
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
	forClusters(t, 0.35, func(t *testing.T, g *gen, c oracle.Cluster) {
		compareVerdicts(t, g, c, counts)
	})
	t.Logf("packets:\n%v", counts)
}

// compareVerdicts asks both about many packets, and tells the first one that
// they do not agree on.
func compareVerdicts(t *testing.T, g *gen, c oracle.Cluster, counts tally) {
	t.Helper()
	snapshot := compile.Compile(input(c))
	for _, p := range g.packets(c) {
		want := oracle.Judge(c, here, p)
		counts.add(want)
		if disagreement(snapshot.Evaluate(p), want) != "" {
			t.Error(explain(c, p))
			return
		}
	}
}

// explain shrinks a cluster in which a packet gets two answers, and describes
// what is left.
func explain(c oracle.Cluster, p packet.Packet) string {
	c = shrink(c, func(c oracle.Cluster) bool {
		return disagreement(compile.Compile(input(c)).Evaluate(p), oracle.Judge(c, here, p)) != ""
	})
	got, want := compile.Compile(input(c)).Evaluate(p), oracle.Judge(c, here, p)
	return fmt.Sprintf("%s of %v on node %s differs\n got %v\nwant %v\n%s", disagreement(got, want), p, here, got, want, describe(c))
}

func FuzzVerdict(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("any bytes choose a cluster"))
	f.Fuzz(func(t *testing.T, data []byte) {
		g := newGenFromBytes(data)
		compareVerdicts(t, g, g.cluster(), tally{})
	})
}
