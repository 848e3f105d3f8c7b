package flows

import (
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
		for decider, decide := range map[string]func(r *Recorder, d policy.Decision, s *policy.Snapshot){
			"agent": func(r *Recorder, d policy.Decision, s *policy.Snapshot) { r.Decided(&query, &d, s, nil, r.epoch) },
			"kernel": func(r *Recorder, d policy.Decision, s *policy.Snapshot) {
				r.Remembered(packet.Class{Src: query.Src.Addr(), Dst: query.Dst.Addr(), Proto: packet.UDP, Port: 53}, d, s, 1)
			},
		} {
			t.Run(tc.name+"/"+decider, func(t *testing.T) {
				r := New(Config{Registerer: prometheus.NewRegistry()})
				r.recent.seed = 1 // these flows have different slots
				decide(r, policy.Decision{Action: tc.query}, policy.New(policy.Model{}))
				if got := r.Answers(&tc.next, r.epoch.Add(tc.after)); got != tc.want {
					t.Errorf("%v answers %v: %v, want %v", tc.next, query, got, tc.want)
				}
			})
		}
	}
}

func TestRecentFlowsDoNotAllocate(t *testing.T) {
	r := New(Config{Registerer: prometheus.NewRegistry()})
	p := packet.Packet{Src: netip.MustParseAddrPort("10.0.0.1:40000"), Dst: netip.MustParseAddrPort("10.0.0.2:53"), Proto: packet.UDP}
	if n := testing.AllocsPerRun(100, func() {
		r.recent.add(&p, r.epoch)
		r.Answers(&p, r.epoch)
		r.Late()
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Each answer of an agent says how many late packets there were, also if there were none.
func TestLatePacketsAreCounted(t *testing.T) {
	r := New(Config{Registerer: prometheus.NewRegistry()})
	for want := range uint64(3) {
		for _, f := range []Filter{{}, {Denied: true}, {Rules: true}} {
			records := r.Read(f)
			if got := records[0].Late; len(records) != 1 || got == nil || *got != want {
				t.Errorf("Read(%+v) = %+v, want %d late packets and no flow", f, records, want)
			}
		}
		r.Late()
	}
}
