package property

import (
	"fmt"
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
)

// TestHiddenPortsAreTheWorstThatTheyCouldBe: NP-44. If a packet with unreadable ports is allowed,
// so is every packet that it could be.
func TestHiddenPortsAreTheWorstThatTheyCouldBe(t *testing.T) {
	allowed, denied := 0, 0
	forClusters(t, func(t *testing.T, g *gen, c oracle.Cluster) {
		questions := g.questions(c)
		s := clusterstate.Compile(input(c))
		for _, q := range questions {
			if s.Evaluate(q.with(packet.Unknown, 0).query()).Allowed() {
				allowed++
			} else {
				denied++
			}
		}
		if concealed(c, questions) != "" {
			c = shrink(c, func(c oracle.Cluster) bool { return concealed(c, questions) != "" })
			t.Errorf("%s\n%s", concealed(c, questions), describe(c))
		}
	})
	t.Logf("hidden packets: %d allowed, %d denied", allowed, denied)
}

// concealed describes a packet that is denied but allowed with hidden ports, or returns "".
func concealed(c oracle.Cluster, questions []question) string {
	s := clusterstate.Compile(input(c))
	for _, q := range questions {
		hidden := q.with(packet.Unknown, 0)
		if !s.Evaluate(hidden.query()).Allowed() {
			continue
		}
		for _, shown := range q.possible() {
			if d := s.Evaluate(shown.query()); !d.Allowed() {
				return fmt.Sprintf("%v passes, but %v: %v", hidden, shown, d)
			}
		}
	}
	return ""
}

// with returns the question for a different protocol and port.
func (q question) with(proto packet.Proto, port uint16) question {
	q.Proto = proto
	q.Src, q.Dst = netip.AddrPortFrom(q.Src.Addr(), 0), netip.AddrPortFrom(q.Dst.Addr(), port)
	return q
}

// possible returns the packets that one with hidden ports could be: all protocols, with the ports
// at which rules begin and end.
func (q question) possible() []question {
	all := []question{q.with(packet.ICMP, 0)}
	for _, proto := range []packet.Proto{packet.TCP, packet.UDP, packet.SCTP} {
		for _, port := range []uint16{1, 2, 53, 54, 80, 81, 82, 90, 91, 8080, 8081, 10000, 65535} {
			all = append(all, q.with(proto, port))
		}
	}
	return all
}
