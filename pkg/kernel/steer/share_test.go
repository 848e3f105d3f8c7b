package steer

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer/steertest"
)

// overflowQueue is the Config.OverflowQueue of these tests.
const overflowQueue = 105

func sharing(c *Config) { c.Share, c.OverflowQueue = 1, overflowQueue }

func srcSpent(p *steertest.Packet) { p.SrcSpent = true }
func dstSpent(p *steertest.Packet) { p.DstSpent = true }

// A packet within its pod's share goes to the first queues, and any other packet to the overflow queues.
// The source's share is charged first, so that the destination's share is not used.
func TestShareOfEachPacket(t *testing.T) {
	s, fake := newFake(t, sharing)
	pods, outside := []netip.Addr{v4, v6, v4b, v6b}, []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	tooNew := []netip.Addr{netip.MustParseAddr("10.244.1.99"), netip.MustParseAddr("fd00:10:244:1::99")}
	mustSync(t, s, Sets{Ingress: pods, Egress: pods, ToHost: pods, Pods: pods, IngressRanges: prefixes("10.244.1.0/24", "fd00:10:244:1::/64")})
	for family := range families {
		pod, other, out, fresh := pods[family], pods[2+family], outside[family], tooNew[family]
		for _, tt := range []struct {
			name   string
			packet steertest.Packet
			beyond bool
		}{
			{"between pods", pkt(pod, other), false},
			{"between pods, the source's share is spent", pkt(pod, other, srcSpent), true},
			{"between pods, the destination's share is spent by others", pkt(pod, other, dstSpent), false},
			{"to the outside", pkt(pod, out, dstSpent), false},
			{"to the outside, the share is spent", pkt(pod, out, srcSpent), true},
			{"from the outside", pkt(out, pod, srcSpent), false},
			{"from the outside, the destination's share is spent", pkt(out, pod, dstSpent), true},
			{"to the node", pkt(pod, out, toHost), false},
			{"to the node, the share is spent", pkt(pod, out, toHost, srcSpent), true},
			{"from the outside to a pod too new to be known", pkt(out, fresh), true},
			{"from a pod to a pod too new to be known", pkt(pod, fresh), false},
			{"invalid", pkt(pod, other, state(steertest.Invalid), srcSpent), true},
		} {
			t.Run(tt.name, func(t *testing.T) {
				got, err := steertest.Trace(fake, tt.packet, nil)
				if err != nil {
					t.Fatal(err)
				}
				queues := " to 100-103"
				if tt.beyond {
					queues = " to 105-108"
				}
				if got.Verdict != queue || !strings.HasSuffix(got.Statement, queues) {
					t.Errorf("%+v: %s %q, want%s", tt.packet, got.Verdict, got.Statement, queues)
				}
			})
		}
	}
}

// The same packets are queued with and without shares, only to other queues.
func TestSharesDoNotChangeVerdicts(t *testing.T) {
	pods := []netip.Addr{v4, v6}
	sets := Sets{Ingress: pods, Egress: pods[:1], ToHost: pods, Pods: []netip.Addr{v4, v6, v4b, v6b}}
	with, withFake := newFake(t, sharing)
	without, withoutFake := newFake(t, nil)
	mustSync(t, with, sets)
	mustSync(t, without, sets)
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		p := randomPacket(r)
		p.SrcSpent, p.DstSpent = r.IntN(2) == 0, r.IntN(2) == 0
		if got, want := outcome(t, withFake, p), outcome(t, withoutFake, p); got != want {
			t.Errorf("%+v: %s with shares, %s without", p, got, want)
		}
	}
}

func TestConfigValidateShare(t *testing.T) {
	for _, tt := range []struct {
		edit func(*Config)
		want string
	}{
		{func(c *Config) {}, ""},
		{func(c *Config) { c.Share = 0; c.OverflowQueue = 100 }, ""},
		{func(c *Config) { c.Share = MaxShare + 1 }, "Share 1000001 is above 1000000"},
		{func(c *Config) { c.OverflowQueue = 65535 }, "OverflowQueue: the last queue would be 65538, above 65535"},
		{func(c *Config) { c.OverflowQueue = 101 }, "OverflowQueue 101: the range overlaps other queues"},
		{func(c *Config) { c.OverflowQueue = 99 }, "OverflowQueue 99: the range overlaps other queues"},
		{func(c *Config) { c.ObserveQueue = 106 }, "OverflowQueue 105: the range overlaps other queues"},
	} {
		t.Run(cmp.Or(tt.want, "valid"), func(t *testing.T) {
			cfg := testConfig()
			sharing(&cfg)
			tt.edit(&cfg)
			got := ""
			if err := cfg.Validate(); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// Packets that exceed a share are decided, too, with each Divert that the kernel supports.
func TestKernelShares(t *testing.T) {
	needKernel(t)
	caps, err := Probe(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if caps.Share != nil {
		t.Fatal(caps.Share)
	}
	const port = 4020
	for d, missing := range map[Divert]error{DivertQueue: caps.Queue, DivertXTables: caps.XTables} {
		if missing != nil {
			continue
		}
		t.Run(d.String(), func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, ipv6 bool) {
				n := newNode(t) // without the shares of an earlier table
				decide, overflow := listen(t), listenTo(t, overflowQueue)
				sets := isolated(n.b)
				sets.Pods = []netip.Addr{n.a.v4, n.a.v6}
				s := newReal(t, func(c *Config) { sharing(c); c.Divert, c.Queues = d, 1 })
				mustSync(t, s, sets)
				to := netip.AddrPortFrom(n.b.addr(ipv6), port)
				say(t, n.a.send(t, to), "first")
				decide.accept(t, decide.next(t))
				// The share is one a second, so at some time two packets come within a second.
				for beyond := false; !beyond; {
					say(t, n.a.send(t, to), "more")
					select {
					case a := <-overflow.packets:
						overflow.accept(t, a)
						beyond = true
					case a := <-decide.packets:
						decide.accept(t, a)
					}
				}
				// The unknown source and the destination are not in Pods, so there is no share.
				say(t, n.outside.send(t, to), "unknown")
				overflow.accept(t, overflow.next(t))
				mustSync(t, s, Sets{Ingress: sets.Ingress, Pods: []netip.Addr{n.b.v4, n.b.v6}})
				say(t, n.outside.send(t, to), "known")
				decide.accept(t, decide.next(t))
				if got := counterValue(t, s); got < 4 {
					t.Errorf("steered %d packets, want 4 at least", got)
				}
			})
		})
	}
}

// Elements that packets add do not count as changes of the table.
func TestKernelShareElementsAreNoDrift(t *testing.T) {
	n := newNode(t)
	s := newReal(t, func(c *Config) { sharing(c); c.Queues = 1 })
	sets := isolated(n.b)
	sets.Pods = []netip.Addr{n.a.v4}
	mustSync(t, s, sets)
	decide := listen(t)
	say(t, n.a.send(t, netip.AddrPortFrom(n.b.v4, 4021)), "x")
	decide.accept(t, decide.next(t))
	if !strings.Contains(listTable(t), n.a.v4.String()+" limit rate") {
		t.Fatalf("no share in\n%s", listTable(t))
	}
	before, err := s.read(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	mustSync(t, s, sets)
	after, err := s.read(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if before.layout != ours || !before.sameAs(after) || !slices.Equal(before.base.rules[shareChain], after.base.rules[shareChain]) {
		t.Errorf("%+v became %+v", before, after)
	}
}
