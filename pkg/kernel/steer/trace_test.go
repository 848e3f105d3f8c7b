package steer

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer/steertest"
)

const (
	accept = steertest.Accept
	drop   = steertest.Drop
	queue  = steertest.Queue
)

// pkt returns a first packet. src and dst must have the same family.
func pkt(src, dst netip.Addr, edits ...func(*steertest.Packet)) steertest.Packet {
	p := steertest.Packet{Src: src, Dst: dst, Proto: "udp", HopLimit: 63}
	for _, edit := range edits {
		edit(&p)
	}
	return p
}

func state(s steertest.State) func(*steertest.Packet) {
	return func(p *steertest.Packet) { p.State = s }
}

func proto(name string) func(*steertest.Packet) {
	return func(p *steertest.Packet) { p.Proto = name }
}

func icmpv6(kind, hopLimit uint8) func(*steertest.Packet) {
	return func(p *steertest.Packet) {
		p.Proto, p.ICMPv6Type, p.HopLimit, p.State = "ipv6-icmp", kind, hopLimit, steertest.Untracked
	}
}

func reply(p *steertest.Packet)     { p.Reply = true }
func toHost(p *steertest.Packet)    { p.ToHost = true }
func fromNode(p *steertest.Packet)  { p.SrcLocal = true }
func forwarded(p *steertest.Packet) { p.Forwarded = true }

func confirmed(p *steertest.Packet) { p.Confirmed = true }

func astray(p *steertest.Packet) { p.NoWayBack = true }

func translated(p *steertest.Packet) { p.DNAT = true }

func marked(mark, ctMark uint32) func(*steertest.Packet) {
	return func(p *steertest.Packet) { p.Mark, p.CTMark = mark, ctMark }
}

// traceCase is a row of a table test.
type traceCase struct {
	name   string
	packet steertest.Packet
	want   steertest.Verdict
}

func checkTraces(t *testing.T, fake *knftables.Fake, cases []traceCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			got, err := steertest.Trace(fake, tt.packet, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got.Verdict != tt.want {
				t.Errorf("%+v: %s, want %s", tt.packet, got.Verdict, tt.want)
			}
		})
	}
}

func TestQueuedPackets(t *testing.T) {
	s, fake := newFake(t, nil)
	in4, in6, out4, out6 := v4, v6, v4b, v6b
	mustSync(t, s, Sets{Ingress: []netip.Addr{in4, in6}, Egress: []netip.Addr{out4, out6}})
	oneWay(t, fake, pkt(peer4, in4), pkt(out6, peer6))
	linkLocal, allNodes := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("ff02::16")
	checkTraces(t, fake, []traceCase{
		{"to an ingress pod", pkt(peer4, in4), queue},
		{"to an ingress pod", pkt(peer6, in6), queue},
		{"from an egress pod", pkt(out4, peer4), queue},
		{"from an egress pod", pkt(out6, peer6), queue},
		{"TCP", pkt(peer4, in4, proto("tcp")), queue},
		{"SCTP", pkt(peer4, in4, proto("sctp")), queue},
		{"ICMP", pkt(peer4, in4, proto("icmp")), queue},
		{"an unknown protocol", pkt(peer6, in6, proto("esp")), queue},
		{"from an ingress pod", pkt(in4, peer4), accept},
		{"from an ingress pod", pkt(in6, peer6), accept},
		{"to an egress pod", pkt(peer4, out4), accept},
		{"to an egress pod", pkt(peer6, out6), accept},
		{"between the selected", pkt(out4, in4), queue},
		{"hairpin", pkt(in4, in4), queue},
		{"no pod selected", pkt(peer4, netip.MustParseAddr("10.244.1.9")), accept},
		{"no pod selected", pkt(peer6, netip.MustParseAddr("2001:db8::9")), accept},

		{"reply", pkt(in4, out4, state(steertest.Established), reply), accept},
		{"established", pkt(out4, in4, state(steertest.Established)), accept},
		{"established SCTP", pkt(out4, in4, proto("sctp"), state(steertest.Established)), accept},
		{"ICMP error", pkt(peer6, in6, proto("ipv6-icmp"), state(steertest.Related)), accept},
		{"invalid", pkt(peer4, in4, proto("tcp"), state(steertest.Invalid)), queue},
		{"invalid", pkt(out6, peer6, proto("tcp"), state(steertest.Invalid)), queue},
		{"untracked", pkt(peer4, in4, state(steertest.Untracked)), queue},

		{"own node", pkt(peer4, in4, fromNode), accept},
		{"own node", pkt(peer6, in6, fromNode), accept},
		{"own node, invalid", pkt(peer6, in6, fromNode, state(steertest.Invalid)), accept},

		{"own node's address, forged", pkt(peer6, in6, fromNode, forwarded), queue},
		{"forwarded", pkt(peer4, in4, forwarded), queue},

		{"accepted flow", pkt(peer4, in4, marked(0, DefaultMark), confirmed), accept},
		{"accepted flow", pkt(out6, peer6, marked(0, DefaultMark|0x4000), confirmed), accept},
		{"other ct mark", pkt(peer4, in4, marked(0, ^(DefaultMark|DefaultLowerMark)), confirmed), queue},
		{"forged packet mark", pkt(peer4, in4, marked(DefaultMark, 0)), queue},
		{"invalid with a mark", pkt(peer4, in4, marked(DefaultMark, DefaultMark), state(steertest.Invalid)), queue},

		{"neighbour solicitation", pkt(peer6, in6, icmpv6(135, 255)), accept},
		{"neighbour advertisement", pkt(out6, peer6, icmpv6(136, 255)), accept},
		{"router solicitation", pkt(out6, peer6, icmpv6(133, 255)), accept},
		{"redirect", pkt(peer6, in6, icmpv6(137, 255)), accept},
		{"discovery that was forwarded", pkt(out6, peer6, icmpv6(135, 254)), queue},
		{"listener query", pkt(linkLocal, in6, icmpv6(130, 1)), accept},
		{"listener report", pkt(netip.IPv6Unspecified(), allNodes, icmpv6(143, 1)), accept},
		{"listener report from afar", pkt(out6, peer6, icmpv6(143, 1)), queue},
		{"echo request", pkt(out6, peer6, icmpv6(128, 255)), queue},
		{"UDP with hop limit 255", pkt(out6, peer6, func(p *steertest.Packet) { p.HopLimit = 255 }), queue},
	})
}

func TestUnknownAddressInRangeIsQueued(t *testing.T) {
	s, fake := newFake(t, nil)
	unknown4, unknown6 := netip.MustParseAddr("10.244.1.77"), netip.MustParseAddr("fd00:10:244:1::77")
	mustSync(t, s, Sets{
		Pods:          []netip.Addr{v4, v6},
		IngressRanges: prefixes("10.244.1.0/24", "fd00:10:244:1::/64"),
	})
	checkTraces(t, fake, []traceCase{
		{"known", pkt(peer4, v4), accept},
		{"known", pkt(peer6, v6), accept},
		{"unknown", pkt(peer4, unknown4), queue},
		{"unknown", pkt(peer6, unknown6), queue},
		{"unknown, other direction", pkt(unknown4, peer4), accept},
		{"unknown, own node", pkt(peer4, unknown4, fromNode), accept},
	})
	mustSync(t, s, Sets{
		Pods:         []netip.Addr{v4, v6},
		Egress:       []netip.Addr{v4},
		EgressRanges: prefixes("10.244.1.0/24", "fd00:10:244:1::/64"),
	})
	checkTraces(t, fake, []traceCase{
		{"known and selected", pkt(v4, peer4), queue},
		{"known", pkt(v6, peer6), accept},
		{"unknown", pkt(unknown4, peer4), queue},
		{"unknown", pkt(unknown6, peer6), queue},
		{"unknown, other direction", pkt(peer4, unknown4), accept},
		{"the node's own address in the range", pkt(netip.MustParseAddr("10.244.1.1"), peer4, fromNode), accept},
	})
}

func TestOnlyToHostPodsAreQueuedAtInput(t *testing.T) {
	s, fake := newFake(t, nil)
	node4, node6 := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	mustSync(t, s, Sets{
		ToHost:  []netip.Addr{v4, v6},
		Ingress: []netip.Addr{v4b, v6b}, Egress: []netip.Addr{v4b, v6b},
		Pods: []netip.Addr{v4, v6, v4b, v6b}, EgressRanges: prefixes("10.244.1.0/24", "fd00:10:244:1::/64"),
	})
	oneWay(t, fake, pkt(v4, node4, toHost))
	checkTraces(t, fake, []traceCase{
		{"concerned", pkt(v4, node4, toHost), queue},
		{"concerned", pkt(v6, node6, toHost), queue},
		{"ICMP", pkt(v4, node4, toHost, proto("icmp")), queue},
		{"isolated by NetworkPolicy", pkt(v4b, node4, toHost), accept},
		{"isolated by NetworkPolicy", pkt(v6b, node6, toHost), accept},
		{"too new to be known", pkt(netip.MustParseAddr("10.244.1.77"), node4, toHost), accept},
		{"from outside", pkt(peer4, node4, toHost), accept},
		{"from outside", pkt(peer6, node6, toHost), accept},
		{"not to the node", pkt(v4, peer4), accept},
		{"to such a pod", pkt(peer4, v4), accept},

		{"reply to the node", pkt(v4, node4, toHost, reply, state(steertest.Established)), accept},
		{"established", pkt(v6, node6, toHost, state(steertest.Established)), accept},
		{"ICMP error", pkt(v6, node6, toHost, proto("ipv6-icmp"), state(steertest.Related)), accept},
		{"invalid", pkt(v4, node4, toHost, state(steertest.Invalid)), queue},
		{"untracked", pkt(v4, node4, toHost, state(steertest.Untracked)), queue},
		{"accepted flow", pkt(v4, node4, toHost, marked(0, DefaultMark), confirmed), accept},
		{"forged packet mark", pkt(v4, node4, toHost, marked(DefaultMark, 0)), queue},
		{"neighbour solicitation", pkt(v6, node6, toHost, icmpv6(135, 255)), accept},
		{"echo request", pkt(v6, node6, toHost, icmpv6(128, 255)), queue},
	})
}

func TestUnknownAddressInRangeIsQueuedAtInput(t *testing.T) {
	s, fake := newFake(t, nil)
	node4, node6 := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	unknown4, unknown6 := netip.MustParseAddr("10.244.1.77"), netip.MustParseAddr("fd00:10:244:1::77")
	mustSync(t, s, Sets{Pods: []netip.Addr{v4, v6}, ToHostRanges: prefixes("10.244.1.0/24", "fd00:10:244:1::/64")})
	oneWay(t, fake, pkt(unknown4, node4, toHost))
	checkTraces(t, fake, []traceCase{
		{"unknown", pkt(unknown4, node4, toHost), queue},
		{"unknown", pkt(unknown6, node6, toHost), queue},
		{"unknown, accepted", pkt(unknown4, node4, toHost, marked(0, DefaultMark), confirmed), accept},
		{"unknown, not to the node", pkt(unknown4, peer4), accept},
		{"known, and nothing may be denied", pkt(v4, node4, toHost), accept},
		{"from outside", pkt(peer4, node4, toHost), accept},
		{"the address of a bridge", pkt(netip.MustParseAddr("10.244.1.1"), node4, toHost, fromNode), accept},
		{"reply to the node", pkt(unknown4, node4, toHost, reply, state(steertest.Established)), accept},
		{"DHCP", pkt(netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("255.255.255.255"), toHost, dport(67)), accept},
		{"neighbour solicitation", pkt(unknown6, node6, toHost, icmpv6(135, 255)), accept},
		{"duplicate address detection", pkt(netip.MustParseAddr("::"), netip.MustParseAddr("ff02::1"), toHost, icmpv6(135, 255)), accept},
		{"listener report", pkt(netip.MustParseAddr("fe80::2"), netip.MustParseAddr("ff02::16"), toHost, icmpv6(143, 1)), accept},
	})
}

// observeQueue is the Config.ObserveQueue of these tests.
const observeQueue = 104

func observing(c *Config) { c.ObserveQueue = observeQueue }

// observed counts the packets that the observer sees, and decides the other ones by verdict.
func observed(count *int, verdict steertest.Verdict) steertest.Agent {
	return func(p steertest.Packet, statement string) (steertest.Verdict, uint32) {
		if strings.HasSuffix(statement, fmt.Sprintf(" %d", observeQueue)) {
			*count++
			return accept, p.Mark
		}
		return verdict, p.Mark | DefaultMark
	}
}

func TestObservedPackets(t *testing.T) {
	s, fake := newFake(t, observing)
	res4, res6 := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")
	mustSync(t, s, Sets{
		Observed: []netip.Addr{v4, v6},
		Servers:  []netip.AddrPort{netip.AddrPortFrom(res4, 53), netip.AddrPortFrom(res6, 5353)},
	})
	ports := func(src, dst uint16) func(*steertest.Packet) {
		return func(p *steertest.Packet) { p.SrcPort, p.DstPort = src, dst }
	}
	established := state(steertest.Established)
	for _, tt := range []struct {
		name   string
		packet steertest.Packet
		want   int
	}{
		{"query", pkt(v4, res4, ports(40000, 53)), 1},
		{"query", pkt(v6, res6, ports(40000, 5353)), 1},
		{"answer", pkt(res4, v4, ports(53, 40000), reply, established), 1},
		{"answer", pkt(res6, v6, ports(5353, 40000), reply, established), 1},
		{"TCP", pkt(v4, res4, ports(40000, 53), proto("tcp"), established), 1},
		{"SCTP", pkt(v4, res4, ports(40000, 53), proto("sctp")), 0},
		{"not tracked", pkt(v4, res4, ports(40000, 53), state(steertest.Untracked)), 1},
		{"accepted flow", pkt(v4, res4, ports(40000, 53), marked(0, DefaultMark)), 1},
		{"resolver of the node", pkt(v4, res4, ports(40000, 53), toHost), 1},
		{"its answer", pkt(res4, v4, ports(53, 40000), fromNode, reply, established), 1},
		{"another port", pkt(v4, res4, ports(40000, 5353)), 0},
		{"another port", pkt(v6, res6, ports(40000, 53)), 0},
		{"another server", pkt(v4, peer4, ports(40000, 53)), 0},
		{"another pod", pkt(v4b, res4, ports(40000, 53)), 0},
		{"answer to another pod", pkt(res4, v4b, ports(53, 40000), reply, established), 0},
		{"forged answer", pkt(res4, v4, ports(53, 40000), forwarded, astray), 0},
		{"forged answer", pkt(res6, v6, ports(5353, 40000), forwarded, astray, reply, established), 0},
		{"query by an asymmetric route", pkt(v4, res4, ports(40000, 53), forwarded, astray), 1},
		{"from the port, not to it", pkt(v4, res4, ports(53, 40000)), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := 0
			if _, err := steertest.Trace(fake, tt.packet, observed(&got, accept)); err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("%+v: seen %d times, want %d", tt.packet, got, tt.want)
			}
		})
	}
}

// The observer does not decide the DNS queries of an isolated pod.
func TestObservedPacketsAreNotAccepted(t *testing.T) {
	resolver := netip.AddrPortFrom(peer4, 53)
	for _, p := range []steertest.Packet{pkt(v4, peer4), pkt(v4, peer4, toHost), pkt(v4, peer4, marked(DefaultMark, 0))} {
		p.SrcPort, p.DstPort = 40000, 53
		for _, evaluated := range []bool{true, false} {
			s, fake := newFake(t, observing)
			sets := Sets{Observed: []netip.Addr{v4}, Servers: []netip.AddrPort{resolver}}
			if evaluated {
				sets.Egress, sets.ToHost = []netip.Addr{v4}, []netip.Addr{v4}
			}
			mustSync(t, s, sets)
			seen := 0
			got, err := steertest.Trace(fake, p, observed(&seen, drop))
			if err != nil {
				t.Fatal(err)
			}
			if want := map[bool]steertest.Verdict{true: drop, false: accept}[evaluated]; got.Verdict != want || seen != 1 || got.CTMark != 0 {
				t.Errorf("%+v, evaluated %v: %+v, seen %d times; want %s, seen once and no ct mark", p, evaluated, got, seen, want)
			}
		}
	}
}

func TestTranslatedUDPIsQueuedEarly(t *testing.T) {
	for _, where := range []EarlyUDP{EarlyOn, EarlyOff} {
		s, fake := newFake(t, func(c *Config) { c.EarlyUDP = where })
		mustSync(t, s, Sets{Ingress: []netip.Addr{v4, v6}, ToHost: []netip.Addr{v4b}})
		for _, tt := range []struct {
			name   string
			packet steertest.Packet
			early  bool
		}{
			{"new", pkt(peer4, v4, forwarded, translated), true},
			{"new", pkt(peer6, v6, forwarded, translated), true},
			{"not translated", pkt(peer4, v4, forwarded), false},
			{"TCP", pkt(peer4, v4, forwarded, translated, proto("tcp")), false},
			{"untracked", pkt(peer4, v4, forwarded, translated, state(steertest.Untracked)), false},
			{"by IPVS", pkt(peer4, v4), false},
			{"to the node", pkt(v4b, peer4, toHost, translated), false},
		} {
			t.Run(fmt.Sprint(where, " ", tt.name), func(t *testing.T) {
				want := knftables.PostroutingHook
				switch {
				case where == EarlyOn && tt.early:
					want = knftables.PreroutingHook
				case tt.packet.ToHost:
					want = knftables.InputHook
				}
				got, err := steertest.Trace(fake, tt.packet, nil)
				if err != nil {
					t.Fatal(err)
				}
				if got.Verdict != queue || got.Hook != want {
					t.Errorf("EarlyUDP %v, %s: %+v: %s at %s, want queue at %s", where, tt.name, tt.packet, got.Verdict, got.Hook, want)
				}
			})
		}
	}
}

// Random packets get the same verdict with and without EarlyOn. The agent's verdict depends on the
// addresses.
func TestEarlyUDPDoesNotChangeVerdicts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	for range 20 {
		sets := randomSets(r)
		sets.Stale = nil // packets of stale addresses are queued again at the second hook
		var fakes []*knftables.Fake
		for _, where := range []EarlyUDP{EarlyOn, EarlyOff} {
			s, fake := newFake(t, func(c *Config) { c.EarlyUDP, c.ObserveQueue = where, observeQueue })
			mustSync(t, s, sets)
			fakes = append(fakes, fake)
		}
		for range 500 {
			p := randomPacket(r)
			if early, late := outcome(t, fakes[0], p), outcome(t, fakes[1], p); early != late {
				t.Fatalf("%+v\nearly: %s\nlate:  %s", p, early, late)
			}
		}
	}
}

// outcome describes the verdict and the marks of a packet, and how often it was queued.
func outcome(t *testing.T, fake *knftables.Fake, p steertest.Packet) string {
	t.Helper()
	verdict := accept
	if p.Src.As4()[3]%2 == p.Dst.As4()[3]%2 {
		verdict = drop
	}
	seen, asked := 0, 0
	got, err := steertest.Trace(fake, p, func(p steertest.Packet, statement string) (steertest.Verdict, uint32) {
		asked++
		return observed(&seen, verdict)(p, statement)
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s, mark %#x, ct mark %#x, seen %d times, queued %d times", got.Verdict, got.Mark, got.CTMark, seen, asked-seen)
}

// randomPacket returns a packet of few addresses, ports and marks.
func randomPacket(r *rand.Rand) steertest.Packet {
	addr := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 1, byte(r.IntN(14))}) }
	coin := func() bool { return r.IntN(2) == 0 }
	p := steertest.Packet{
		Src: addr(), Dst: addr(), Proto: []string{"udp", "tcp"}[r.IntN(2)], HopLimit: 63,
		SrcPort: uint16(r.IntN(3) * 53), DstPort: uint16(r.IntN(3) * 53),
		State:     []steertest.State{steertest.New, steertest.New, steertest.Established, steertest.Untracked}[r.IntN(4)],
		Mark:      uint32(r.IntN(2)) * DefaultMark,
		CTMark:    uint32(r.IntN(2)) * DefaultMark,
		Forwarded: coin(),
		Confirmed: coin(),
	}
	// A packet from a pod that did not arrive on an interface comes from IPVS, whose translation
	// is not DNAT.
	p.DNAT, p.ToHost = p.Forwarded && coin(), p.Forwarded && coin()
	return p
}

func TestSCTPIsQueuedPerPacketWithoutPortTracking(t *testing.T) {
	s, fake := newFake(t, func(c *Config) { c.SCTPPerPacket = true })
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}})
	oneWay(t, fake, pkt(peer4, v4, proto("sctp")))
	established := state(steertest.Established)
	checkTraces(t, fake, []traceCase{
		{"first", pkt(peer4, v4, proto("sctp")), queue},
		{"established", pkt(peer4, v4, proto("sctp"), established), queue},
		{"accepted once", pkt(peer4, v4, proto("sctp"), marked(0, DefaultMark), confirmed), queue},
		{"reply", pkt(v4, peer4, proto("sctp"), established, reply), accept},
		{"reply to the selected", pkt(peer4, v4, proto("sctp"), established, reply), accept},
		{"invalid", pkt(peer4, v4, proto("sctp"), state(steertest.Invalid)), queue},
		{"unselected", pkt(v4, peer4, proto("sctp")), accept},
		{"TCP", pkt(peer4, v4, proto("tcp"), established), accept},
	})
}

// The other bits of both marks are kept, whether they are all set or all clear.
func TestOtherMarkBitsAreKept(t *testing.T) {
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}})
	agent := func(p steertest.Packet, _ string) (steertest.Verdict, uint32) { return accept, p.Mark | DefaultMark }
	for _, otherBits := range []uint32{0, ^(DefaultMark | DefaultLowerMark)} {
		for _, tt := range []struct {
			name       string
			packet     steertest.Packet
			wantCTMark uint32
		}{
			{"asked about", pkt(peer4, v4, marked(otherBits, otherBits)), otherBits | DefaultMark},
			{"asked about, forged mark", pkt(peer4, v4, marked(otherBits|DefaultMark, otherBits)), otherBits | DefaultMark},
			{"not asked about", pkt(v4, peer4, marked(otherBits, otherBits)), otherBits},
			{"not asked about, forged mark", pkt(v4, peer4, marked(otherBits|DefaultMark, otherBits)), otherBits},
			{"established, forged mark", pkt(peer4, v4, marked(otherBits|DefaultMark, otherBits), state(steertest.Established)), otherBits},
			{"of no connection", pkt(peer4, v4, marked(otherBits, otherBits), state(steertest.Invalid)), otherBits},
		} {
			t.Run(tt.name, func(t *testing.T) {
				got, err := steertest.Trace(fake, tt.packet, agent)
				if err != nil {
					t.Fatal(err)
				}
				if got.Verdict != accept || got.Mark != otherBits || got.CTMark != tt.wantCTMark {
					t.Errorf("%s with mark %#x and ct mark %#x, want accept with %#x and %#x",
						got.Verdict, got.Mark, got.CTMark, otherBits, tt.wantCTMark)
				}
			})
		}
	}
}

func TestBlockedConnectionsAreDropped(t *testing.T) {
	const cut uint32 = 0x800
	established := state(steertest.Established)
	s, fake := newFake(t, func(c *Config) { c.SCTPPerPacket, c.EarlyUDP = true, EarlyOn })
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4, v6}})
	oneWay(t, fake, pkt(peer4, v4))
	checkTraces(t, fake, []traceCase{
		{"original", pkt(peer4, v4, proto("tcp"), established, marked(0, cut)), drop},
		{"original", pkt(peer6, v6, proto("tcp"), established, marked(0, cut|DefaultMark)), drop},
		{"reply", pkt(v4, peer4, proto("tcp"), established, reply, marked(0, cut)), drop},
		{"ICMP error", pkt(peer4, v4, proto("icmp"), state(steertest.Related), marked(0, cut)), drop},
		{"one-way flow, once accepted", pkt(peer4, v4, marked(0, cut|DefaultMark), confirmed), drop},
		{"to the node", pkt(v4, peer4, proto("tcp"), established, toHost, marked(0, cut)), drop},
		{"early", pkt(peer4, v4, forwarded, translated, marked(0, cut|DefaultMark), confirmed), drop},
		{"all bits", pkt(peer4, v4, established, marked(0, ^uint32(0))), drop},
		{"SCTP", pkt(v4, peer4, proto("sctp"), established, reply, marked(0, cut)), drop},
		{"marks of others", pkt(peer4, v4, established, marked(^uint32(0), ^cut)), accept},
		{"packet mark", pkt(v4, peer4, marked(cut, 0)), accept},
		{"invalid", pkt(peer4, v4, state(steertest.Invalid), marked(0, cut)), queue},
	})
}

// If a packet of a blocked connection reached the forward hook, a flowtable of another program could
// take the connection past all hooks.
func TestBlockedConnectionsDoNotReachForward(t *testing.T) {
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}})
	fake.Table.Chains["postrouting"].Rules = nil
	established := state(steertest.Established)
	checkTraces(t, fake, []traceCase{
		{"original", pkt(peer4, v4, proto("tcp"), established, forwarded, marked(0, 0x800|DefaultMark)), drop},
		{"reply", pkt(v4, peer4, proto("tcp"), established, reply, forwarded, marked(0, 0x800)), drop},
		{"not blocked", pkt(peer4, v4, proto("tcp"), established, forwarded, marked(0, DefaultMark)), accept},
	})
}

// randomSets draws from few addresses and prefixes, so that they often coincide.
func randomSets(r *rand.Rand) Sets {
	addrs := func() []netip.Addr {
		var as []netip.Addr
		for range r.IntN(8) {
			n := byte(r.IntN(12))
			as = append(as, netip.AddrFrom4([4]byte{10, 244, 1, n}),
				netip.AddrFrom16([16]byte{0xfd, 15: n}))
		}
		return as
	}
	ranges := func() []netip.Prefix {
		var ps []netip.Prefix
		for range r.IntN(4) {
			ps = append(ps, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(r.IntN(3)), byte(r.IntN(3) << 6), 0}), r.IntN(33)),
				netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 7: byte(r.IntN(3) << 6)}), r.IntN(129)))
		}
		return ps
	}
	var resolvers []netip.AddrPort
	for _, a := range addrs() {
		resolvers = append(resolvers, netip.AddrPortFrom(a, uint16(r.IntN(3)*53))) // 0 is no port
	}
	var owners []Owner
	for _, a := range addrs() {
		owners = append(owners, Owner{a, 1 + uint32(r.IntN(3))})
	}
	return Sets{Ingress: addrs(), Egress: addrs(), ToHost: addrs(), Pods: addrs(), IngressRanges: ranges(), EgressRanges: ranges(), ToHostRanges: ranges(),
		Observed: addrs(), Servers: resolvers, Stale: addrs(), Owners: owners}
}

func TestRandomSetsEndInLastOne(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	s, fake := newFake(t, nil)
	for i := range 100 {
		sets := randomSets(r)
		mustSync(t, s, sets)
		if got, want := fakeContents(fake), sets.contents(); !equalContents(got, want) {
			t.Fatalf("sets %d: got %v, want %v", i, got, want)
		}
	}
}

// IPVS forwards packets to the address of a Service even from a link-local source, which the kernel would
// not forward and which is not the pod's address.
func TestLinkLocalSourcesDoNotLeaveTheNode(t *testing.T) {
	linkLocal, neighbour := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2")
	for name, edit := range variants {
		s, fake := newFake(t, edit)
		mustSync(t, s, Sets{Egress: []netip.Addr{v6}, Pods: []netip.Addr{v6, v6b}})
		for _, tt := range []traceCase{
			{"to another pod", pkt(linkLocal, v6b), drop},
			{"to another pod, TCP", pkt(linkLocal, v6b, proto("tcp")), drop},
			{"to another pod, in the middle of a connection", pkt(linkLocal, v6b, segment), drop},
			{"outside", pkt(linkLocal, peer6), drop},
			{"a neighbour", pkt(linkLocal, neighbour), accept},
			{"neighbours", pkt(linkLocal, netip.MustParseAddr("ff02::1")), accept},
			{"from the node", pkt(linkLocal, peer6, fromNode), accept},
		} {
			tt.name = name + ": " + tt.name
			checkTraces(t, fake, []traceCase{tt})
		}
	}
}
