package steer

import (
	"net/netip"
	"testing"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer/steertest"
)

// accepting is an agent that accepts every packet.
func accepting(p steertest.Packet, _ string) (steertest.Verdict, uint32) {
	return accept, p.Mark | DefaultMark
}

// oneWay lets the agent accept a later packet of each connection, which no packet answers.
func oneWay(t *testing.T, fake *knftables.Fake, packets ...steertest.Packet) {
	t.Helper()
	for _, p := range packets {
		p.Confirmed, p.CTMark = true, 0
		if _, err := steertest.Trace(fake, p, accepting); err != nil {
			t.Fatal(err)
		}
	}
}

// Marks of connections that the agent has not accepted are no decision, whoever wrote them, and neither is
// the record without the mark.
func TestMarksAreNoDecision(t *testing.T) {
	related := state(steertest.Related)
	service := func(p *steertest.Packet) { p.Forwarded, p.DNAT = true, true }
	for name, edit := range variants {
		for _, where := range []func(*steertest.Packet){func(*steertest.Packet) {}, forwarded, toHost, service} {
			s, fake := newFake(t, edit)
			mustSync(t, s, Sets{Ingress: []netip.Addr{v4, v6}, ToHost: []netip.Addr{peer4, peer6}})
			// As if other programs wrote the marks after these chains.
			fake.Table.Chains[blockedChain].Rules, fake.Table.Chains[unmarkChain].Rules = nil, nil
			for _, tt := range []traceCase{
				{"copied to an expected connection", pkt(peer4, v4, where, related, proto("tcp"), marked(0, DefaultMark)), queue},
				{"copied to an expected connection", pkt(peer6, v6, where, related, marked(0, DefaultMark)), queue},
				{"written before the first verdict", pkt(peer4, v4, where, marked(0, DefaultMark)), queue},
				{"written before the first verdict, of both", pkt(peer6, v6, where, marked(DefaultMark, DefaultMark)), queue},
				{"of an injected entry", pkt(peer4, v4, where, confirmed, marked(0, DefaultMark)), queue},
				{"of an injected entry", pkt(peer6, v6, where, confirmed, related, marked(0, DefaultMark)), queue},
				{"of an injected entry, ICMP", pkt(peer4, v4, where, confirmed, proto("icmp"), marked(0, DefaultMark)), queue},
				{"of the packet", pkt(peer4, v4, where, confirmed, marked(DefaultMark, 0)), queue},
			} {
				tt.name = name + ": " + tt.name
				checkTraces(t, fake, []traceCase{tt})
			}
			oneWay(t, fake, pkt(peer4, v4, where), pkt(peer6, v6, where, related))
			for _, tt := range []traceCase{
				{"accepted", pkt(peer4, v4, where, confirmed, marked(0, DefaultMark)), accept},
				{"accepted", pkt(peer6, v6, where, confirmed, related, marked(0, DefaultMark)), accept},
				{"a new entry of the same ends", pkt(peer4, v4, where), queue},
				{"an entry of the same ends, without the mark", pkt(peer6, v6, where, confirmed, related), queue},
				{"another port", pkt(peer4, v4, where, confirmed, dport(1), marked(0, DefaultMark)), queue},
				{"another protocol", pkt(peer4, v4, where, confirmed, proto("tcp"), marked(0, DefaultMark)), queue},
			} {
				tt.name = name + ", recorded: " + tt.name
				checkTraces(t, fake, []traceCase{tt})
			}
			foreign := traceCase{name + ", recorded: a new entry of the same ends, marked", pkt(peer4, v4, where, marked(0, DefaultMark)), queue}
			cfg := testConfig()
			edit(&cfg)
			if cfg.EarlyUDP != EarlyOn {
				checkTraces(t, fake, []traceCase{foreign})
			}
		}
	}
}

// Right after connection tracking, our bits in a connection that is not in the table yet are cleared, and
// no others.
func TestCopiedMarksAreCleared(t *testing.T) {
	const both, other = DefaultMark | DefaultLowerMark, 0x4005
	s, fake := newFake(t, nil)
	mustSync(t, s, Sets{})
	related := state(steertest.Related)
	for _, where := range []func(*steertest.Packet){func(*steertest.Packet) {}, forwarded, toHost} {
		for _, tt := range []struct {
			packet steertest.Packet
			want   uint32
		}{
			{pkt(peer4, v4, where, related, marked(0, both|other)), other},
			{pkt(peer6, v6, where, related, proto("tcp"), marked(0, DefaultLowerMark|other)), other},
			{pkt(peer4, v4, where, marked(0, DefaultMark|other)), other},
			{pkt(peer4, v4, where, confirmed, marked(0, DefaultMark|other)), DefaultMark | other},
			{pkt(peer4, v4, where, related, proto("icmp"), marked(0, DefaultMark|other)), DefaultMark | other},
			{pkt(peer4, v4, where, state(steertest.Established), reply, marked(0, DefaultMark|other)), DefaultMark | other},
		} {
			got, err := steertest.Trace(fake, tt.packet, nil)
			if err != nil || got.Verdict != accept || got.CTMark != tt.want {
				t.Errorf("%+v: %+v, %v, want the connection mark %#x", tt.packet, got, err, tt.want)
			}
		}
	}
}

// A packet that is decided before postrouting is not decided again there, and its record does not decide a
// packet with other ports.
func TestEarlyVerdictsHold(t *testing.T) {
	for name, edit := range map[string]func(*Config){"answers": nil, "early": func(c *Config) { c.EarlyUDP = EarlyOn }} {
		s, fake := newFake(t, edit)
		mustSync(t, s, answeredSets())
		for _, p := range []steertest.Packet{pkt(peer4, v4, forwarded, translated), pkt(peer6, v6, forwarded, translated)} {
			asked := 0
			got, err := steertest.Trace(fake, p, func(p steertest.Packet, s string) (steertest.Verdict, uint32) {
				asked++
				return accepting(p, s)
			})
			if err != nil || got.Verdict != accept || asked != 1 {
				t.Errorf("%s: %+v: %+v, %v, asked %d times, want it accepted after one question", name, p, got, err, asked)
			}
			p.SrcPort = 1
			if got, err := steertest.Trace(fake, p, refusing); err != nil || got.Verdict == accept {
				t.Errorf("%s: %+v: %+v, %v, want it denied", name, p, got, err)
			}
		}
	}
}

// The agent takes its bit in a queued packet for a late packet or an ICMP error, so no other program may
// set it.
func TestMarksOfPacketsDoNotReachTheAgent(t *testing.T) {
	for _, where := range []EarlyUDP{EarlyOn, EarlyOff} {
		s, fake := newFake(t, func(c *Config) { c.SourceCheck, c.EarlyUDP = true, where })
		mustSync(t, s, Sets{
			Ingress: []netip.Addr{v4, v6}, ToHost: []netip.Addr{v4, v6}, Pods: []netip.Addr{v4, v6},
			CheckSources: true, Unchecked: []string{"eth0"}, HostLinks: []string{"cali1"},
		})
		mark := marked(DefaultMark, 0)
		for _, p := range []steertest.Packet{
			pkt(peer4, v4, mark), pkt(peer6, v6, mark, forwarded), pkt(peer4, v4, mark, forwarded, translated), pkt(v4, peer4, mark, toHost),
			pkt(netip.MustParseAddr("fe80::7"), netip.MustParseAddr("fe80::1"), mark, toHost, arrivingOn("cali1")),
		} {
			asked := 0
			if _, err := steertest.Trace(fake, p, func(p steertest.Packet, _ string) (steertest.Verdict, uint32) {
				asked++
				if p.Mark&DefaultMark != 0 {
					t.Errorf("%+v is queued with the mark", p)
				}
				return drop, p.Mark
			}); err != nil || asked != 1 {
				t.Errorf("%+v: asked %d times, %v", p, asked, err)
			}
		}
	}
}
