package property

import (
	"fmt"
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
)

// TestLatePacketsNeedBothDirections: NP-65. A packet that does not open its connection passes if
// the oracle allows both directions, and is steered if it does not.
func TestLatePacketsNeedBothDirections(t *testing.T) {
	allowed, denied, back := 0, 0, 0
	forClusters(t, func(t *testing.T, g *gen, c oracle.Cluster) {
		questions := g.questions(c)
		s := clusterstate.Compile(input(c))
		for _, q := range questions {
			d, decided := s.EvaluateLate(q.query())
			switch {
			case d.Allowed():
				allowed++
			case decided.Packet != q.Packet:
				back++
			default:
				denied++
			}
		}
		if lateFault(c, questions) != "" {
			c = shrink(c, func(c oracle.Cluster) bool { return lateFault(c, questions) != "" })
			t.Errorf("%s\n%s", lateFault(c, questions), describe(c))
		}
	})
	t.Logf("late packets: %d allowed, %d denied, %d denied in the other direction", allowed, denied, back)
}

// lateFault describes a late packet that is decided or steered wrongly, or returns "".
func lateFault(c oracle.Cluster, questions []question) string {
	s := clusterstate.Compile(input(c))
	in, out := steering(s, policy.Ingress), steering(s, policy.Egress)
	either := func(a netip.Addr) bool { return in(a) || out(a) }
	for _, q := range questions {
		if q.toHost {
			continue // handled like any packet to the node
		}
		got, decided := s.EvaluateLate(q.query())
		want := oracle.EvaluateLate(c, here, q.oracleQuery())
		if got.Allowed() != want {
			return fmt.Sprintf("a late packet %v: %v, the oracle: allowed %v", q, got, want)
		}
		if again := s.Evaluate(decided); again != got {
			return fmt.Sprintf("a late packet %v: %v, but %v is decided %v", q, got, decided.Packet, again)
		}
		if !want && !either(q.Src.Addr()) && !either(q.Dst.Addr()) {
			return fmt.Sprintf("a late packet %v is denied, and not steered", q)
		}
	}
	return ""
}
