package enforce

import (
	"net/netip"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// TestAnswers has a client send a datagram to a server, and then another one come.
func TestAnswers(t *testing.T) {
	const client, server, other = "10.0.0.1", "10.0.0.2", "10.0.0.3"
	udp := func(src string, srcPort uint16, dst string, dstPort uint16) packet.Packet {
		return packet.Packet{Src: netip.AddrPortFrom(netip.MustParseAddr(src), srcPort), Dst: netip.AddrPortFrom(netip.MustParseAddr(dst), dstPort), Proto: packet.UDP}
	}
	query, answer := udp(client, 40000, server, 53), udp(server, 53, client, 40000)
	tcp := answer
	tcp.Proto = packet.TCP
	for _, tc := range []struct {
		name  string
		query policy.Action
		next  packet.Packet
		after time.Duration
		want  bool
	}{
		{"an answer", policy.Allow, answer, 0, true},
		{"a late answer", policy.Allow, answer, recentWindow, true},
		{"an answer that is too late", policy.Allow, answer, recentWindow + 10*time.Minute, false},
		{"an answer to another port", policy.Allow, udp(server, 53, client, 40001), 0, true},
		{"from another port", policy.Allow, udp(server, 54, client, 40000), 0, false},
		{"from another address", policy.Allow, udp(other, 53, client, 40000), 0, false},
		{"to another address", policy.Allow, udp(server, 53, other, 40000), 0, false},
		{"the query once more", policy.Allow, query, 0, false},
		{"of another protocol", policy.Allow, tcp, 0, false},
		{"to a query that was denied", policy.Deny, answer, 0, false},
	} {
		for decider, report := range map[string]func(e *Enforcer, d policy.Decision, s *policy.Snapshot){
			"agent": func(e *Enforcer, d policy.Decision, s *policy.Snapshot) {
				e.report(&event.Event{Query: policy.Query{Packet: query}, Decision: d, Snapshot: s, At: e.queries.epoch})
			},
			"kernel": func(e *Enforcer, d policy.Decision, _ *policy.Snapshot) {
				e.ReportClass(packet.Class{Src: query.Src.Addr(), Dst: query.Dst.Addr(), Proto: packet.UDP, Port: 53}, d, 1)
			},
		} {
			t.Run(tc.name+"/"+decider, func(t *testing.T) {
				e, s := New(Config{}), policy.New(policy.Model{})
				e.Swap(s)
				e.queries.seed = 1 // these flows have different slots
				report(e, policy.Decision{Action: tc.query}, s)
				if got := e.queries.answers(&tc.next, e.queries.epoch.Add(tc.after)); got != tc.want {
					t.Errorf("%v answers %v: %v, want %v", tc.next, query, got, tc.want)
				}
			})
		}
	}
}
