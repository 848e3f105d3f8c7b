package enforce

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/agent/packets"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

const ack = 0x10

// plain is an IPv4 packet with a payload.
func plain(src, dst netip.Addr, proto packet.Proto, payload ...byte) []byte {
	b := make([]byte, 20, 20+len(payload))
	b[0], b[9] = 0x45, byte(proto)
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	return append(b, payload...)
}

func udp(src, dst netip.AddrPort) []byte {
	header := binary.BigEndian.AppendUint16(nil, src.Port())
	header = binary.BigEndian.AppendUint16(header, dst.Port())
	return plain(src.Addr(), dst.Addr(), packet.UDP, append(header, 0, 8, 0, 0)...)
}

// newObserved returns an enforcer whose outputs a test can read.
func newObserved(s *policy.Snapshot, cfg Config) (e *Enforcer, reg *prometheus.Registry, o observed) {
	reg = prometheus.NewPedanticRegistry()
	log, logger := newLog()
	o = observed{log: log, verdicts: &classRecorder{}, flows: flows.New(flows.Config{Node: "node-1", Registerer: reg, Logger: logger})}
	cfg.AcceptClass, cfg.Taps = o.verdicts.remember, append(cfg.Taps, packets.New(reg, logr.Discard()).Tap, o.verdicts.tap, o.flows.Tap)
	e = New(cfg)
	e.Swap(s)
	return e, reg, o
}

type observed struct {
	log      *[]string
	verdicts *classRecorder
	flows    *flows.Recorder
}

// expectNoAttempt fails the test if any consumer of decisions got one.
func (o observed) expectNoAttempt(t *testing.T, reg prometheus.Gatherer) {
	t.Helper()
	for _, f := range []flows.Filter{{}, {Rules: true}} {
		if records := o.flows.Read(f); len(records) > 1 {
			t.Errorf("it is recorded: %+v", records[1])
		}
	}
	if late := o.flows.Read(flows.Filter{})[0].Late; late == nil || *late == 0 {
		t.Error("the records do not say that there was one")
	}
	if len(o.verdicts.classes) > 0 {
		t.Errorf("%v are remembered", o.verdicts.classes)
	}
	if lines := *o.log; len(lines) > 0 {
		t.Errorf("logged %q", lines)
	}
	for _, name := range []string{"netpol_decisions_total", "netpol_rule_decisions_total", "netpol_audit_packets_total", "netpol_audit_undecided_packets_total"} {
		if got := counted(t, reg, name); got != "" {
			t.Errorf("%s counts %s", name, got)
		}
	}
}

func TestLatePacketsAreNoAttempts(t *testing.T) {
	for _, tc := range []struct {
		name     string
		snapshot *policy.Snapshot
		cfg      Config
		payload  []byte
		want     event.Result
		late     string // the counter
		failure  string // the counter of the failure policy
	}{
		{"denied TCP", snapshot(), Config{}, segment(open, isolated, 81, ack), event.Drop, "TCP/drop", ""},
		{"allowed TCP", snapshot(), Config{}, segment(open, isolated, 80, ack), event.Accept, "TCP/accept", ""},
		{"TCP of a pod that no policy selects", snapshot(), Config{}, segment(isolated, open, 40000, ack), event.Accept, "TCP/accept", ""},
		{"TCP that audited policies would deny", auditing(), Config{}, segment(open, audited, 40000, ack), event.Accept, "TCP/accept", ""},
		{"TCP of which audited policies decide nothing", auditing(), Config{Learned: faulty{}}, segment(audited, open, 40000, ack), event.Accept, "TCP/accept", ""},
		{"TCP to a pod that is gone", snapshot(), Config{}, segment(open, tooNew, 40000, ack), event.Drop, "TCP/drop", ""},
		{"TCP to an unknown pod, fail open", snapshot(), Config{FailOpenUnknownPacket: true}, segment(open, tooNew, 40000, ack), event.Accept, "TCP/accept", "unknown_pod/accept"},
		{"denied SCTP", snapshot(), Config{}, plain(open, isolated, packet.SCTP, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 4), event.Drop, "SCTP/drop", ""},
		{"an echo reply", snapshot(), Config{}, plain(open, isolated, packet.ICMP, 0, 0, 0, 0), event.Drop, "ICMP/drop", ""},
		{"an ICMP error", snapshot(), Config{}, plain(open, isolated, packet.ICMP, 3, 1, 0, 0), event.Drop, "ICMP/drop", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, reg, o := newObserved(tc.snapshot, tc.cfg)
			for range 3 {
				if got := e.Decide(Input{Payload: tc.payload, Last: true}); got != tc.want {
					t.Errorf("got %d, want %d", got, tc.want)
				}
			}
			o.expectNoAttempt(t, reg)
			if got := counted(t, reg, "netpol_late_packets_total"); got != tc.late {
				t.Errorf("netpol_late_packets_total counts %q, want %q", got, tc.late)
			}
			if got := total(t, reg, "netpol_late_packets_total"); got != 3 {
				t.Errorf("%d late packets are counted, want 3", got)
			}
			if got := counted(t, reg, "netpol_failure_policy_packets_total"); got != tc.failure {
				t.Errorf("netpol_failure_policy_packets_total counts %q, want %q", got, tc.failure)
			}
			if got := total(t, reg, "packet_count"); got != 3 {
				t.Errorf("%d packets are counted, want 3", got)
			}
		})
	}
}

// TestMarkedPacketsNeedBothDirections: the kernel marks packets that start a conntrack entry but
// may not have opened their connection. Policies allow some of them in their own direction only.
func TestMarkedPacketsNeedBothDirections(t *testing.T) {
	sctp := func(src, dst netip.Addr, chunk byte) []byte {
		return plain(src, dst, packet.SCTP, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, chunk, 0, 0, 4)
	}
	const init, heartbeat = 1, 4
	fromServer := segment(isolated, open, 40000, ack) // from port 80
	binary.BigEndian.PutUint16(fromServer[20:], 80)
	for _, tc := range []struct {
		name    string
		cfg     Config
		payload []byte
		last    bool
		want    event.Result
		late    string
		back    bool // connections of the receiver are reported as accepted, too
	}{
		{"a server whose client is allowed", Config{}, fromServer, false, event.Accept, "TCP/accept", true},
		{"a server whose client is denied", Config{}, segment(isolated, open, 40000, ack), false, event.Drop, "TCP/drop", false},
		{"an allowed client", Config{}, segment(open, isolated, 80, ack), false, event.Accept, "TCP/accept", true},
		{"a denied client", Config{}, segment(open, isolated, 81, ack), false, event.Drop, "TCP/drop", false},
		{"cut before the flags", Config{}, segment(isolated, open, 40000, ack)[:28], false, event.Drop, "hidden/drop", false},
		{"an unknown client", Config{}, segment(tooNew, open, 40000, ack), false, event.ShortWait, "", false},
		{"an unknown client has waited", Config{}, segment(tooNew, open, 40000, ack), true, event.Drop, "TCP/drop", false},
		{"an unknown client has waited, fail open", Config{FailOpenUnknownPacket: true}, segment(tooNew, open, 40000, ack), true, event.Accept, "TCP/accept", true},
		{"an association goes on", Config{}, sctp(isolated, open, heartbeat), false, event.Drop, "SCTP/drop", false},
		{"an association begins", Config{}, sctp(isolated, open, init), false, event.Accept, "", false},
		{"a datagram is not late", Config{}, udp(netip.AddrPortFrom(isolated, 80), netip.AddrPortFrom(open, 53)), false, event.Drop, "UDP/drop", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var accepted []string
			tc.cfg.Taps = []event.Tap{accepting(func(p packet.Packet, eitherWay bool) { accepted = append(accepted, fmt.Sprint(p, eitherWay)) })}
			e, reg, o := newObserved(snapshot(), tc.cfg)
			if got := e.Decide(Input{Payload: tc.payload, Last: tc.last, Marked: true}); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
			if tc.late != "" {
				o.expectNoAttempt(t, reg)
			}
			if got := counted(t, reg, "netpol_late_packets_total"); got != tc.late {
				t.Errorf("netpol_late_packets_total counts %q, want %q", got, tc.late)
			}
			p, _ := packet.Parse(tc.payload)
			var want []string
			if tc.want == event.Accept {
				want = []string{fmt.Sprint(p, tc.back)}
			}
			if !slices.Equal(accepted, want) {
				t.Errorf("reported as accepted %q, want %q", accepted, want)
			}
		})
	}
}

// TestForgedLatePacketsHideNoAttempt: late packets of a pod do not change its verdicts, and
// its attempts to connect are still recorded and remembered.
func TestForgedLatePacketsHideNoAttempt(t *testing.T) {
	e, reg, o := newObserved(snapshot(), Config{})
	for range 3 {
		for _, flags := range []byte{ack, 0x02} {
			if got := e.Decide(Input{Payload: segment(open, isolated, 81, flags)}); got != event.Drop {
				t.Errorf("flags %x: got %d, want %d", flags, got, event.Drop)
			}
		}
	}
	if got := counted(t, reg, "netpol_decisions_total"); got != "ingress/networkpolicy/deny" || total(t, reg, "netpol_decisions_total") != 3 {
		t.Errorf("%d decisions %q, want 3 denials", total(t, reg, "netpol_decisions_total"), got)
	}
	if got := total(t, reg, "netpol_late_packets_total"); got != 3 {
		t.Errorf("%d late packets are counted, want 3", got)
	}
	records := o.flows.Read(flows.Filter{Denied: true})
	if len(records) < 2 || records[1].Type != flows.TypeFlow || records[1].Count != 3 {
		t.Errorf("recorded %+v, want a flow of 3 packets", records)
	}
	if len(o.verdicts.classes) != 3 {
		t.Errorf("%d packets count for a class to be remembered, want 3", len(o.verdicts.classes))
	}
	if lines := *o.log; len(lines) != 1 || !strings.Contains(lines[0], "Packet denied") {
		t.Errorf("logged %q, want one denial: they are alike", lines)
	}
}

// TestLateAnswers: a datagram is late only if it is in the reverse direction of an allowed
// flow.
func TestLateAnswers(t *testing.T) {
	at := netip.AddrPortFrom
	const client, server = 40000, 53
	answer := udp(at(open, server), at(isolated, client))
	for _, tc := range []struct {
		name  string
		query []byte // before it
		next  []byte
		late  string
	}{
		{"an answer", udp(at(isolated, client), at(open, server)), answer, "UDP/drop"},
		{"no query before", nil, answer, ""},
		{"a query that was denied", udp(at(open, client), at(isolated, server)), udp(at(isolated, server), at(open, client)), ""},
		{"to a port of servers", udp(at(isolated, client), at(open, server)), udp(at(open, server), at(isolated, server)), ""},
		{"from another port", udp(at(isolated, client), at(open, server)), udp(at(open, server+1), at(isolated, client)), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, reg, o := newObserved(snapshot(), Config{})
			if tc.query != nil {
				e.Decide(Input{Payload: tc.query})
			}
			before, flowsBefore, classes := total(t, reg, "netpol_decisions_total"), len(o.flows.Read(flows.Filter{})), len(o.verdicts.classes)
			e.Decide(Input{Payload: tc.next})
			if got := counted(t, reg, "netpol_late_packets_total"); got != tc.late {
				t.Errorf("netpol_late_packets_total counts %q, want %q", got, tc.late)
			}
			more := 1
			if tc.late != "" {
				more = 0
			}
			if got := total(t, reg, "netpol_decisions_total"); got != before+more {
				t.Errorf("%d decisions are counted, want %d", got, before+more)
			}
			if got := len(o.flows.Read(flows.Filter{})); got > flowsBefore != (more == 1) {
				t.Errorf("%d records, want those of %d decisions more than %d", got, more, flowsBefore)
			}
			if got := len(o.verdicts.classes); got != classes+more {
				t.Errorf("%d classes may be remembered, want %d", got, classes+more)
			}
		})
	}
}

// The decision log distinguishes late packets.
func TestLatePacketsAreLoggedAsSuch(t *testing.T) {
	var lines []string
	logger := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{Verbosity: 4})
	e := New(Config{Taps: counting(prometheus.NewRegistry(), logger)})
	e.Swap(snapshot())
	e.Decide(Input{Payload: segment(open, isolated, 81, ack)})
	if len(lines) != 1 {
		t.Fatalf("logged %q, want one line", lines)
	}
	const want = `"msg"="Packet decided that does not begin a connection" "packet"="TCP 10.0.0.2:0 -> 10.0.0.1:81"`
	if got := lines[0]; !strings.Contains(got, want) {
		t.Errorf("logged %q, want %s", got, want)
	}
}

// A packet of an established connection is decided like the packet that opened the connection, whichever end
// sent it, and is no attempt.
func TestPacketsOfEstablishedConnections(t *testing.T) {
	pod, peer, behind := netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.8.0.1")
	only53 := &policy.Chain{Rules: []policy.Rule{
		{Action: policy.Allow, Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Name: "some"}, AnyPeer: true, Ports: []policy.Port{{Proto: packet.UDP, First: 53, Last: 53}}},
		{Action: policy.Deny, Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Name: "some"}, AnyPeer: true, AnyPort: true, Index: policy.Isolation},
	}}
	endpoints := policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{pod: {Namespace: "x", Name: "pod", Egress: only53, Ingress: only53}})
	s := policy.New(policy.Model{Endpoints: endpoints, Local: policy.NewLocal(endpoints, []netip.Addr{pod})})
	at := netip.AddrPortFrom
	const ofPod, uplink = 3, 4
	for _, tt := range []struct {
		name          string
		src, dst      netip.AddrPort
		reply         bool
		link, outLink uint32
		want          event.Result
	}{
		{"opened by the pod", at(pod, 40000), at(peer, 53), false, ofPod, uplink, event.Accept},
		{"its replies", at(peer, 53), at(pod, 40000), true, uplink, ofPod, event.Accept},
		{"denied to the pod", at(pod, 53), at(peer, 80), false, ofPod, uplink, event.Drop},
		{"its replies, from a port that is allowed to the peer", at(peer, 80), at(pod, 53), true, uplink, ofPod, event.Drop},
		{"opened to the pod", at(peer, 40000), at(pod, 53), false, uplink, ofPod, event.Accept},
		{"replies of the pod", at(pod, 53), at(peer, 40000), true, ofPod, uplink, event.Accept},
		{"replies of the pod, denied", at(pod, 80), at(peer, 53), true, ofPod, uplink, event.Drop},
		{"from behind the pod", at(behind, 40000), at(peer, 53), false, ofPod, uplink, event.Accept},
		{"replies to behind the pod", at(peer, 53), at(behind, 40000), true, uplink, ofPod, event.Accept},
		{"replies to behind the pod, denied", at(peer, 80), at(behind, 53), true, uplink, ofPod, event.Drop},
		{"replies from behind the pod, denied", at(behind, 80), at(peer, 53), true, ofPod, uplink, event.Drop},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var accepted []packet.Packet
			e, reg, o := newObserved(s, Config{Taps: []event.Tap{accepting(func(p packet.Packet, _ bool) { accepted = append(accepted, p) })}})
			e.SetInterfaces(&Interfaces{Links: map[uint32]Behind{ofPod: {Single: true, Pod: []netip.Addr{pod}}, uplink: {}}})
			in := Input{Payload: udp(tt.src, tt.dst), Link: tt.link, OutLink: tt.outLink, Established: true, Reply: tt.reply}
			if got := e.Decide(in); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			opener := tt.src
			if tt.reply {
				opener = tt.dst
			}
			if tt.want == event.Accept && (len(accepted) != 1 || accepted[0].Src != opener) {
				t.Errorf("accepted %v, want the connection of %v", accepted, opener)
			}
			o.expectNoAttempt(t, reg)
		})
	}
}
