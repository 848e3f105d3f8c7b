package steer

import (
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer/steertest"
)

// segment makes a packet a late TCP segment.
func segment(p *steertest.Packet) { p.Proto, p.TCPFlags = "tcp", steertest.ACK }

func association(p *steertest.Packet) { p.Proto = "sctp" }

func audits(c *Config) { c.AuditQueue = 110 }

// Packets that do not open their connection are queued from and to each pod that policies select in
// one direction, and are marked as late.
func TestLatePacketsAreQueuedWhicheverWay(t *testing.T) {
	isolated := Sets{
		Ingress: []netip.Addr{v4, v6}, Egress: []netip.Addr{v4b, v6b},
		Pods: []netip.Addr{v4, v6, v4b, v6b}, IngressRanges: prefixes("10.9.1.0/24", "fd00:9:1::/64"), EgressRanges: prefixes("10.9.2.0/24", "fd00:9:2::/64"),
	}
	addr := netip.MustParseAddr
	for name, edit := range variants {
		s, fake := newFake(t, edit)
		mustSync(t, s, isolated)
		oneWay(t, fake, pkt(v4, peer4, segment))
		for _, tt := range []struct {
			name   string
			packet steertest.Packet
			want   steertest.Verdict
			marked bool
		}{
			{"from a pod isolated for ingress", pkt(v4, peer4, segment), queue, true},
			{"from a pod isolated for ingress", pkt(v6, peer6, segment), queue, true},
			{"to a pod isolated for ingress", pkt(peer4, v4, segment), queue, true},
			{"to a pod isolated for ingress, forwarded", pkt(peer6, v6, segment, forwarded), queue, true},
			{"from a pod isolated for egress", pkt(v4b, peer4, segment), queue, true},
			{"to a pod isolated for egress", pkt(peer4, v4b, segment), queue, true},
			{"to a pod isolated for egress", pkt(peer6, v6b, segment), queue, true},
			{"to a new pod, ingress", pkt(peer4, addr("10.9.1.7"), segment), queue, true},
			{"from a new pod, ingress", pkt(addr("10.9.1.7"), peer4, segment), queue, true},
			{"to a new pod, egress", pkt(peer6, addr("fd00:9:2::7"), segment), queue, true},
			{"from a new pod, egress", pkt(addr("fd00:9:2::7"), peer6, segment), queue, true},
			{"expected by a helper", pkt(v4, peer4, segment, state(steertest.Related)), queue, true},

			{"of pods that no policy selects", pkt(peer4, addr("10.244.1.9"), segment), accept, false},
			{"of the own node", pkt(peer4, v4b, segment, fromNode), accept, false},
			{"of the own node", pkt(peer6, v6, segment, fromNode), accept, false},
			{"of the own node's address in the range", pkt(addr("10.9.1.1"), v4, segment, fromNode), accept, false},
			{"of the own node's address, forged", pkt(peer6, v6b, segment, fromNode, forwarded), queue, true},
			{"of an accepted one-way connection", pkt(v4, peer4, segment, marked(0, DefaultMark), confirmed), accept, false},
			{"established", pkt(v4, peer4, segment, state(steertest.Established)), accept, false},
			{"a reply", pkt(v4, peer4, segment, state(steertest.Established), reply), accept, false},

			{"SYN", pkt(v4b, peer4, proto("tcp")), queue, false},
			{"SYN the other way", pkt(v4, peer4, proto("tcp")), accept, false},
			{"SYN the other way", pkt(peer6, v6b, proto("tcp")), accept, false},
			// The kernel does not track such packets.
			{"invalid", pkt(v4, peer4, segment, state(steertest.Invalid)), accept, false},
			{"invalid", pkt(v4b, peer4, segment, state(steertest.Invalid)), queue, false},
			{"untracked", pkt(peer4, v4, segment, state(steertest.Untracked)), queue, false},
			{"UDP", pkt(v4, peer4), accept, false},
			// The agent reads the chunk.
			{"SCTP", pkt(v4b, peer4, association), queue, true},
			{"SCTP", pkt(peer6, v6, association), queue, true},
			{"SCTP the other way", pkt(v4, peer4, association), queue, true},
			{"SCTP the other way", pkt(peer6, v6b, association), queue, true},
			{"SCTP of the own node", pkt(peer6, v6b, association, fromNode), accept, false},
		} {
			t.Run(name+": "+tt.name, func(t *testing.T) {
				isMarked := false
				got, err := steertest.Trace(fake, tt.packet, func(p steertest.Packet, _ string) (steertest.Verdict, uint32) {
					isMarked = p.Mark&DefaultMark != 0
					return queue, p.Mark
				})
				if err != nil {
					t.Fatal(err)
				}
				if got.Verdict != tt.want || isMarked != tt.marked {
					t.Errorf("%+v: %s, marked %v, want %s, %v", tt.packet, got.Verdict, isMarked, tt.want, tt.marked)
				}
			})
		}
	}
}

// A remembered verdict on the apparent direction of a late packet does not apply to it.
func TestWhatIsRememberedDoesNotDecideLatePackets(t *testing.T) {
	s, fake := newFake(t, remembering)
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4, v6}})
	syn := func(p *steertest.Packet) { p.Proto, p.DstPort = "tcp", 80 }
	late := func(p *steertest.Packet) { p.Proto, p.DstPort, p.TCPFlags = "tcp", 80, steertest.ACK }
	allow(t, fake, packet.Class{Src: peer4, Dst: v4, Proto: packet.TCP, Port: 80}, packet.Class{Src: peer6, Dst: v6, Proto: packet.TCP, Port: 80})
	checkTraces(t, fake, []traceCase{
		{"SYN", pkt(peer4, v4, syn), accept},
		{"late", pkt(peer4, v4, late), queue},
		{"SYN, IPv6", pkt(peer6, v6, syn), accept},
		{"late, IPv6", pkt(peer6, v6, late), queue},
	})
}

// Auditing does not change which packets pass, so it does not select late packets in both directions.
func TestAuditedPoliciesSelectLatePacketsAsBefore(t *testing.T) {
	s, fake := newFake(t, audits)
	mustSync(t, s, Sets{AuditIngress: []netip.Addr{v4, v6}})
	for _, tt := range []struct {
		packet steertest.Packet
		want   string
	}{
		{pkt(peer4, v4, segment), "110"},
		{pkt(v4, peer4, segment), ""},
		{pkt(v6, peer6, association), ""},
	} {
		got, err := steertest.Trace(fake, tt.packet, nil)
		if err != nil || tt.want == "" && got.Verdict != accept || !strings.HasSuffix(got.Statement, tt.want) || tt.want == "" && got.Statement != "" {
			t.Errorf("%+v: %+v, %v, want queue %q", tt.packet, got, err, tt.want)
		}
	}
}

// Where SCTP is tracked by addresses, any packet of an association may be new.
func TestSCTPThatIsTrackedByAddressesIsNotLate(t *testing.T) {
	s, fake := newFake(t, func(c *Config) { c.SCTPPerPacket = true })
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}})
	checkTraces(t, fake, []traceCase{
		{"of a pod isolated for ingress", pkt(v4, peer4, association), accept},
		{"TCP", pkt(v4, peer4, segment), queue},
	})
	got, err := steertest.Trace(fake, pkt(peer4, v4, association), nil)
	if err != nil || got.Verdict != queue || got.Mark != 0 {
		t.Errorf("%+v, %v, want it queued without a mark", got, err)
	}
}

// Connections that a helper expects are queued, because the ends of the first connection choose their
// ports.
func TestExpectedConnectionsAreQueued(t *testing.T) {
	related := state(steertest.Related)
	for name, edit := range variants {
		s, fake := newFake(t, edit)
		mustSync(t, s, Sets{Ingress: []netip.Addr{v4, v6}})
		for _, p := range []steertest.Packet{
			pkt(peer4, v4, related, proto("tcp")), pkt(peer6, v6, related, proto("tcp"), forwarded), pkt(peer4, v4, related), pkt(peer4, v4, related, proto("gre")),
		} {
			got, err := steertest.Trace(fake, p, nil)
			if err != nil || got.Verdict != queue {
				t.Errorf("%s: %+v: %+v, %v, want it queued", name, p, got, err)
			}
			got, err = steertest.Trace(fake, p, accepting)
			if err != nil || got.Verdict != accept || got.CTMark != DefaultMark {
				t.Errorf("%s: %+v: %+v, %v, want the mark of accepted connections", name, p, got, err)
			}
			p.CTMark, p.Confirmed = got.CTMark, true
			if got, err = steertest.Trace(fake, p, nil); err != nil || got.Verdict != accept {
				t.Errorf("%s: %+v: %+v, %v, want it accepted", name, p, got, err)
			}
		}
	}
}
