package steer

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/steer/steertest"
)

const (
	accept = steertest.Accept
	drop   = steertest.Drop
	queue  = steertest.Queue
)

// packet is a first one; the families of src and dst must agree.
func packet(src, dst netip.Addr, edits ...func(*steertest.Packet)) steertest.Packet {
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
func fromNode(p *steertest.Packet)  { p.SrcLocal = true }
func forwarded(p *steertest.Packet) { p.Forwarded = true }

func marked(mark, ctMark uint32) func(*steertest.Packet) {
	return func(p *steertest.Packet) { p.Mark, p.CTMark = mark, ctMark }
}

// traceCase is one line of a table.
type traceCase struct {
	name   string
	packet steertest.Packet
	want   steertest.Verdict
}

func checkTraces(t *testing.T, fake *knftables.Fake, cases []traceCase) {
	t.Helper()
	for _, tt := range cases {
		got, err := steertest.Trace(fake, tt.packet, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.Verdict != tt.want {
			t.Errorf("%s: %+v: %s, want %s", tt.name, tt.packet, got.Verdict, tt.want)
		}
	}
}

func TestWhatIsAskedAbout(t *testing.T) {
	s, fake := newFake(t, nil)
	in4, in6, out4, out6 := v4, v6, v4b, v6b
	mustSync(t, s, Sets{Ingress: []netip.Addr{in4, in6}, Egress: []netip.Addr{out4, out6}})
	linkLocal, allNodes := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("ff02::16")
	checkTraces(t, fake, []traceCase{
		{"to an ingress pod", packet(peer4, in4), queue},
		{"to an ingress pod", packet(peer6, in6), queue},
		{"from an egress pod", packet(out4, peer4), queue},
		{"from an egress pod", packet(out6, peer6), queue},
		{"TCP", packet(peer4, in4, proto("tcp")), queue},
		{"SCTP", packet(peer4, in4, proto("sctp")), queue},
		{"ICMP", packet(peer4, in4, proto("icmp")), queue},
		{"an unknown protocol", packet(peer6, in6, proto("esp")), queue},
		{"from an ingress pod", packet(in4, peer4), accept},
		{"from an ingress pod", packet(in6, peer6), accept},
		{"to an egress pod", packet(peer4, out4), accept},
		{"to an egress pod", packet(peer6, out6), accept},
		{"between the selected", packet(out4, in4), queue},
		{"hairpin", packet(in4, in4), queue},
		{"nobody selected", packet(peer4, netip.MustParseAddr("10.244.1.9")), accept},
		{"nobody selected", packet(peer6, netip.MustParseAddr("2001:db8::9")), accept},

		{"reply", packet(in4, out4, state(steertest.Established), reply), accept},
		{"established", packet(out4, in4, state(steertest.Established)), accept},
		{"established SCTP", packet(out4, in4, proto("sctp"), state(steertest.Established)), accept},
		{"ICMP error", packet(peer6, in6, proto("ipv6-icmp"), state(steertest.Related)), accept},
		{"invalid", packet(peer4, in4, proto("tcp"), state(steertest.Invalid)), queue},
		{"invalid", packet(out6, peer6, proto("tcp"), state(steertest.Invalid)), queue},
		{"untracked", packet(peer4, in4, state(steertest.Untracked)), queue},

		{"own node", packet(peer4, in4, fromNode), accept},
		{"own node", packet(peer6, in6, fromNode), accept},
		{"own node, invalid", packet(peer6, in6, fromNode, state(steertest.Invalid)), accept},

		{"own node's address, forged", packet(peer6, in6, fromNode, forwarded), queue},
		{"forwarded", packet(peer4, in4, forwarded), queue},

		{"accepted flow", packet(peer4, in4, marked(0, DefaultMark)), accept},
		{"accepted flow", packet(out6, peer6, marked(0, DefaultMark|0x4000)), accept},
		{"other ct mark", packet(peer4, in4, marked(0, ^DefaultMark)), queue},
		{"forged packet mark", packet(peer4, in4, marked(DefaultMark, 0)), queue},
		{"invalid with a mark", packet(peer4, in4, marked(DefaultMark, DefaultMark), state(steertest.Invalid)), queue},

		{"neighbour solicitation", packet(peer6, in6, icmpv6(135, 255)), accept},
		{"neighbour advertisement", packet(out6, peer6, icmpv6(136, 255)), accept},
		{"router solicitation", packet(out6, peer6, icmpv6(133, 255)), accept},
		{"redirect", packet(peer6, in6, icmpv6(137, 255)), accept},
		{"discovery that was forwarded", packet(out6, peer6, icmpv6(135, 254)), queue},
		{"listener query", packet(linkLocal, in6, icmpv6(130, 1)), accept},
		{"listener report", packet(netip.IPv6Unspecified(), allNodes, icmpv6(143, 1)), accept},
		{"listener report from afar", packet(out6, peer6, icmpv6(143, 1)), queue},
		{"echo request", packet(out6, peer6, icmpv6(128, 255)), queue},
		{"UDP with hop limit 255", packet(out6, peer6, func(p *steertest.Packet) { p.HopLimit = 255 }), queue},
	})
}

func TestAddressTooNewToBeKnownIsAskedAbout(t *testing.T) {
	s, fake := newFake(t, nil)
	unknown4, unknown6 := netip.MustParseAddr("10.244.1.77"), netip.MustParseAddr("fd00:10:244:1::77")
	mustSync(t, s, Sets{
		Pods:          []netip.Addr{v4, v6},
		IngressRanges: prefixes("10.244.1.0/24", "fd00:10:244:1::/64"),
	})
	checkTraces(t, fake, []traceCase{
		{"known", packet(peer4, v4), accept},
		{"known", packet(peer6, v6), accept},
		{"unknown", packet(peer4, unknown4), queue},
		{"unknown", packet(peer6, unknown6), queue},
		{"unknown, other direction", packet(unknown4, peer4), accept},
		{"unknown, own node", packet(peer4, unknown4, fromNode), accept},
	})
	mustSync(t, s, Sets{
		Pods:         []netip.Addr{v4, v6},
		Egress:       []netip.Addr{v4},
		EgressRanges: prefixes("10.244.1.0/24", "fd00:10:244:1::/64"),
	})
	checkTraces(t, fake, []traceCase{
		{"known and selected", packet(v4, peer4), queue},
		{"known", packet(v6, peer6), accept},
		{"unknown", packet(unknown4, peer4), queue},
		{"unknown", packet(unknown6, peer6), queue},
		{"unknown, other direction", packet(peer4, unknown4), accept},
		{"the node's own address in the range", packet(netip.MustParseAddr("10.244.1.1"), peer4, fromNode), accept},
	})
}

func TestSCTPIsAskedAboutPacketByPacketWhereItsPortsAreNotTracked(t *testing.T) {
	s, fake := newFake(t, func(c *Config) { c.SCTPPerPacket = true })
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}})
	established := state(steertest.Established)
	checkTraces(t, fake, []traceCase{
		{"first", packet(peer4, v4, proto("sctp")), queue},
		{"established", packet(peer4, v4, proto("sctp"), established), queue},
		{"accepted once", packet(peer4, v4, proto("sctp"), marked(0, DefaultMark)), queue},
		{"reply", packet(v4, peer4, proto("sctp"), established, reply), accept},
		{"reply to the selected", packet(peer4, v4, proto("sctp"), established, reply), accept},
		{"invalid", packet(peer4, v4, proto("sctp"), state(steertest.Invalid)), queue},
		{"unselected", packet(v4, peer4, proto("sctp")), accept},
		{"TCP", packet(peer4, v4, proto("tcp"), established), accept},
	})
}

// TestMarksOfOthersStay goes the whole way of a packet with every other bit of
// both marks set, and with none.
func TestMarksOfOthersStay(t *testing.T) {
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}})
	agent := func(p steertest.Packet) (steertest.Verdict, uint32) { return accept, p.Mark | DefaultMark }
	for _, others := range []uint32{0, ^DefaultMark} {
		for _, tt := range []struct {
			name       string
			packet     steertest.Packet
			wantCTMark uint32
		}{
			{"asked about", packet(peer4, v4, marked(others, others)), others | DefaultMark},
			{"asked about, forged mark", packet(peer4, v4, marked(others|DefaultMark, others)), others | DefaultMark},
			{"not asked about", packet(v4, peer4, marked(others, others)), others},
			{"not asked about, forged mark", packet(v4, peer4, marked(others|DefaultMark, others)), others},
			{"established, forged mark", packet(peer4, v4, marked(others|DefaultMark, others), state(steertest.Established)), others},
			{"of no connection", packet(peer4, v4, marked(others, others), state(steertest.Invalid)), others},
		} {
			got, err := steertest.Trace(fake, tt.packet, agent)
			if err != nil {
				t.Fatal(err)
			}
			if got.Verdict != accept || got.Mark != others || got.CTMark != tt.wantCTMark {
				t.Errorf("%s: %s with mark %#x and ct mark %#x, want accept with %#x and %#x",
					tt.name, got.Verdict, got.Mark, got.CTMark, others, tt.wantCTMark)
			}
		}
	}
}

func TestNothingPassesOnAConnectionThatIsCut(t *testing.T) {
	const cut uint32 = 0x800
	established := state(steertest.Established)
	for _, tt := range []struct {
		mark uint32
		want steertest.Verdict
	}{{cut, drop}, {0, accept}} {
		s, fake := newFake(t, func(c *Config) { c.CutMark, c.SCTPPerPacket = tt.mark, true })
		mustSync(t, s, Sets{Ingress: []netip.Addr{v4, v6}})
		checkTraces(t, fake, []traceCase{
			{"original", packet(peer4, v4, proto("tcp"), established, marked(0, cut)), tt.want},
			{"original", packet(peer6, v6, proto("tcp"), established, marked(0, cut|DefaultMark)), tt.want},
			{"reply", packet(v4, peer4, proto("tcp"), established, reply, marked(0, cut)), tt.want},
			{"ICMP error", packet(peer4, v4, proto("icmp"), state(steertest.Related), marked(0, cut)), tt.want},
			{"one-way flow, once accepted", packet(peer4, v4, marked(0, cut|DefaultMark)), tt.want},
			{"all bits", packet(peer4, v4, established, marked(0, ^uint32(0))), tt.want},
			{"SCTP", packet(v4, peer4, proto("sctp"), established, reply, marked(0, cut)), tt.want},
			{"marks of others", packet(peer4, v4, established, marked(^uint32(0), ^cut)), accept},
			{"packet mark", packet(v4, peer4, marked(cut, 0)), accept},
			{"invalid", packet(peer4, v4, state(steertest.Invalid), marked(0, cut)), queue},
		})
	}
}

func TestDivertChainWithoutAQueueStatementDrops(t *testing.T) {
	s, fake := newFake(t, nil)
	s.writeDivert = func(Config) error { return nil } // as between two batches
	mustSync(t, s, Sets{Ingress: []netip.Addr{v4}})
	checkTraces(t, fake, []traceCase{{"selected", packet(peer4, v4), drop}})
}

// randomSets draws from few addresses and prefixes, so that they meet often.
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
	return Sets{Ingress: addrs(), Egress: addrs(), Pods: addrs(), IngressRanges: ranges(), EgressRanges: ranges()}
}

func TestRandomWishesEndInTheLastOne(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	s, fake := newFake(t, nil)
	for i := range 100 {
		sets := randomSets(r)
		mustSync(t, s, sets)
		if got, want := fakeContents(fake), sets.contents(); !equalContents(got, want) {
			t.Fatalf("seed %d, wish %d: got %v, want %v", seed, i, got, want)
		}
	}
}
