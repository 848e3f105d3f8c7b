package steer

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/florianl/go-nfqueue/v2"
)

// bothFamilies runs f for IPv4 and IPv6.
func bothFamilies(t *testing.T, f func(t *testing.T, ipv6 bool)) {
	t.Run("IPv4", func(t *testing.T) { f(t, false) })
	t.Run("IPv6", func(t *testing.T) { f(t, true) })
}

// isolated returns the sets that queue all packets to p.
func isolated(p *netns) Sets {
	return Sets{Ingress: []netip.Addr{p.v4, p.v6}, Since: time.Now()}
}

func TestQueuedPacketsSurviveSyncsAndRestart(t *testing.T) {
	n := newNode(t)
	const count, port = 150, 4001
	s := newReal(t, nil)
	sets := isolated(n.b)
	mustSync(t, s, sets)
	l := listen(t)
	in := n.b.receive(t, false, port)
	waiting := make([]func(), count)
	for i := range waiting {
		say(t, n.a.send(t, netip.AddrPortFrom(n.b.v4, port)), fmt.Sprint(i))
		a := l.next(t)
		waiting[i] = func() { l.accept(t, a) }
	}

	r := rand.New(rand.NewPCG(1, 2))
	for i := range 100 {
		more := randomSets(r)
		more.Ingress = append(more.Ingress, sets.Ingress...)
		if i%10 == 0 { // a new agent, which probes the kernel
			s = newReal(t, nil)
		}
		mustSync(t, s, more)
	}

	var got []string
	for _, answer := range waiting {
		answer()
		text, _ := hear(t, in)
		got = append(got, text)
	}
	slices.Sort(got)
	if got = slices.Compact(got); len(got) != count {
		t.Errorf("%d of %d packets arrived", len(got), count)
	}
}

func TestOneWayFlowIsQueuedOnceAndKeepsOtherMarks(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		s := newReal(t, nil)
		mustSync(t, s, isolated(n.b))
		// Another table sets other bits of both marks before ours, and checks them after it.
		mustShell(t, `nft -f - <<X
table inet others {
	counter good { }
	chain before {
		type filter hook prerouting priority mangle;
		meta l4proto udp meta mark set 0x8020 ct mark set ct mark or 0x4005
	}
	chain behind {
		type filter hook postrouting priority srcnat + 50;
		meta mark 0x8020 ct mark 0x5005 counter name good
	}
}
X`)
		const port = 4002
		l := listen(t)
		in := n.b.receive(t, ipv6, port)
		out := n.a.send(t, netip.AddrPortFrom(n.b.addr(ipv6), port))
		say(t, out, "first")
		l.accept(t, l.next(t))
		for _, text := range []string{"second", "third"} {
			hear(t, in)
			say(t, out, text)
		}
		if text, _ := hear(t, in); text != "third" {
			t.Errorf("heard %q, want third", text)
		}
		if got := counterValue(t, s); got != 1 || len(l.packets) != 0 {
			t.Errorf("steered %d packets and %d more wait, want 1 and none", got, len(l.packets))
		}
		counter, err := exec.Command("nft", "list", "counter", "inet", "others", "good").Output()
		if err != nil || !strings.Contains(string(counter), "packets 3 ") {
			t.Errorf("packets with both marks right: %s (%v), want 3", counter, err)
		}
	})
}

func TestRepliesAreNotQueued(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		s := newReal(t, nil)
		mustSync(t, s, isolated(n.b)) // b opens the connection to a
		const port = 4003
		server := n.a.receive(t, ipv6, port)
		client := n.b.send(t, netip.AddrPortFrom(n.a.addr(ipv6), port))
		say(t, client, "question")
		buf := make([]byte, 100)
		server.SetReadDeadline(time.Now().Add(patience))
		_, src, err := server.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.WriteToUDPAddrPort([]byte("answer"), src); err != nil {
			t.Fatal(err)
		}
		client.SetReadDeadline(time.Now().Add(patience))
		if _, err := client.Read(buf); err != nil {
			t.Error(err)
		}
		if got := counterValue(t, s); got != 0 {
			t.Errorf("steered %d packets, want 0", got)
		}
	})
}

func TestOwnNodeIsNotQueued(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		s := newReal(t, nil)
		mustSync(t, s, isolated(n.b))
		mustShell(t, "ip neigh flush all") // so that discovery comes first
		const port = 4004
		in := n.b.receive(t, ipv6, port)
		var node *netns
		say(t, node.send(t, netip.AddrPortFrom(n.b.addr(ipv6), port)), "probe")
		hear(t, in)
		if got := counterValue(t, s); got != 0 {
			t.Errorf("steered %d packets, want 0", got)
		}
	})
}

// A privileged pod sends with an address of its node. The kernel prevents this for IPv4.
func TestForgedNodeAddressIsQueued(t *testing.T) {
	n := newNode(t)
	s, l := newReal(t, nil), listen(t)
	mustSync(t, s, isolated(n.b))
	forged := n.b.v6.Prev() // the node's address on the link to b
	mustShell(t, fmt.Sprintf("ip -n %s addr add %v/128 dev lo nodad", n.a.name, forged))
	t.Cleanup(func() { mustShell(t, fmt.Sprintf("ip -n %s addr del %v/128 dev lo", n.a.name, forged)) })
	pod := *n.a
	pod.v6 = forged
	from := pod.receive(t, true, 4009)
	if _, err := from.WriteToUDPAddrPort([]byte("forged"), netip.AddrPortFrom(n.b.v6, 4009)); err != nil {
		t.Fatal(err)
	}
	if src, _ := addrs(l.next(t)); src != forged {
		t.Errorf("queued a packet of %v, want %v", src, forged)
	}
}

func TestServiceIsQueuedAfterDNATBeforeMasquerade(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		mustSync(t, newReal(t, nil), isolated(n.b))
		const port = 4005
		vip := service(t, netip.AddrPortFrom(n.b.addr(ipv6), port))
		mustShell(t, `nft -f - <<X
table inet clients {
	chain clients {
		type nat hook postrouting priority srcnat;
		oifname steer-b masquerade
	}
}
X`)
		l := listen(t)
		in := n.b.receive(t, ipv6, port)
		say(t, n.a.send(t, vip), "query")
		a := l.next(t)
		if src, dst := addrs(a); src != n.a.addr(ipv6) || dst != n.b.addr(ipv6) {
			t.Errorf("queued %v → %v, want %v → %v", src, dst, n.a.addr(ipv6), n.b.addr(ipv6))
		}
		l.accept(t, a)
		if _, src := hear(t, in); src != n.b.addr(ipv6).Prev() {
			t.Errorf("the pod hears %v, want the masqueraded %v", src, n.b.addr(ipv6).Prev())
		}
	})
}

func TestUnknownPodInRangeIsQueued(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		mustSync(t, newReal(t, nil), Sets{
			Pods:          []netip.Addr{n.a.v4, n.a.v6},
			IngressRanges: prefixes("10.244.0.0/16", "fd00:10:244::/48"),
		})
		l := listen(t)
		const port = 4006
		known := n.a.receive(t, ipv6, port)
		say(t, n.outside.send(t, netip.AddrPortFrom(n.a.addr(ipv6), port)), "to a known one")
		hear(t, known)
		say(t, n.outside.send(t, netip.AddrPortFrom(n.b.addr(ipv6), port)), "to an unknown one")
		if _, dst := addrs(l.next(t)); dst != n.b.addr(ipv6) {
			t.Errorf("queued %v, want %v", dst, n.b.addr(ipv6))
		}
	})
}

func TestBypassDecidesWithoutListener(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		const port = 4007
		in := n.b.receive(t, ipv6, port)
		for _, bypass := range []bool{false, true} {
			s := newReal(t, func(c *Config) { c.Bypass = bypass })
			mustSync(t, s, isolated(n.b))
			before := counterValue(t, s)
			say(t, n.a.send(t, netip.AddrPortFrom(n.b.addr(ipv6), port)), fmt.Sprint("bypass ", bypass))
			if bypass { // hear would return the first packet if that had passed
				if text, _ := hear(t, in); text != "bypass true" {
					t.Errorf("heard %q", text)
				}
			}
			if got := counterValue(t, s) - before; got != 1 {
				t.Errorf("bypass %v: steered %d, want 1", bypass, got)
			}
		}
	})
}

// Hook numbers of linux/netfilter.h.
const (
	inputHook       = 1
	postroutingHook = 4
)

// hostAddr returns an address of the node that is not on a pod's interface.
func (n *node) hostAddr(ipv6 bool) netip.Addr { return n.outside.addr(ipv6).Prev() }

func TestToHostIsQueuedAtInput(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		s, l := newReal(t, nil), listen(t)
		mustSync(t, s, Sets{ToHost: []netip.Addr{n.a.v4, n.a.v6}, Egress: []netip.Addr{n.b.v4, n.b.v6}})
		to := netip.AddrPortFrom(n.hostAddr(ipv6), 4010)
		in := (*netns)(nil).receiveAt(t, to)
		out := n.a.send(t, to)
		say(t, out, "first")
		a := l.next(t)
		if src, dst := addrs(a); src != n.a.addr(ipv6) || dst != to.Addr() || *a.Hook != inputHook {
			t.Errorf("queued %v → %v at hook %d, want %v → %v at %d", src, dst, *a.Hook, n.a.addr(ipv6), to.Addr(), inputHook)
		}
		l.accept(t, a)
		hear(t, in)
		say(t, out, "one way, again")
		hear(t, in)
		say(t, n.b.send(t, to), "of a pod that is isolated only")
		hear(t, in)
		say(t, n.outside.send(t, to), "from outside")
		hear(t, in)
		if got := counterValue(t, s); got != 1 {
			t.Errorf("steered %d packets, want 1", got)
		}
	})
}

func TestServiceOfOwnNodeIsQueuedAtInput(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		l := listen(t)
		mustSync(t, newReal(t, nil), Sets{ToHost: []netip.Addr{n.a.v4, n.a.v6}})
		to := netip.AddrPortFrom(n.hostAddr(ipv6), 4011)
		in := (*netns)(nil).receiveAt(t, to)
		say(t, n.a.send(t, service(t, to)), "query")
		a := l.next(t)
		if src, dst := addrs(a); src != n.a.addr(ipv6) || dst != to.Addr() || *a.Hook != inputHook {
			t.Errorf("queued %v → %v at hook %d, want %v → %v at %d", src, dst, *a.Hook, n.a.addr(ipv6), to.Addr(), inputHook)
		}
		l.accept(t, a)
		hear(t, in)
	})
}

// service makes the node forward UDP packets for the returned address to the backends in turn.
func service(t *testing.T, backends ...netip.AddrPort) netip.AddrPort {
	t.Helper()
	vip, ip, bits := netip.MustParseAddr("10.96.0.1"), "ip", 32
	if backends[0].Addr().Is6() {
		vip, ip, bits = netip.MustParseAddr("fd00:10:96::1"), "ip6", 128
	}
	rules := "table inet proxy {\n chain services {\n type nat hook prerouting priority dstnat\n"
	for i, b := range backends {
		rules += fmt.Sprintf("%s daddr %v/%d udp dport 53 numgen inc mod %d == 0 dnat %s to %v\n", ip, vip, bits, len(backends)-i, ip, b)
	}
	mustShell(t, "nft -f - <<X\n"+rules+"}\n}\nX")
	return netip.AddrPortFrom(vip, 53)
}

// long is longer than a truncated copy of a packet.
var long = strings.Repeat("abcdefgh", 100)

// A DNS query through a Service is shown to the observer, and is still decided.
func TestObservedMessagesAreStillQueued(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		s := newReal(t, observing)
		resolver := netip.AddrPortFrom(n.b.addr(ipv6), 4012)
		mustSync(t, s, Sets{
			Observed: []netip.Addr{n.a.v4, n.a.v6},
			Servers:  []netip.AddrPort{resolver},
			Egress:   []netip.Addr{n.a.v4, n.a.v6},
		})
		decide, observer := listen(t), listenTo(t, observeQueue)
		server := n.b.receive(t, ipv6, resolver.Port())
		client := n.a.send(t, service(t, resolver))
		see := func(src, dst netip.Addr) {
			t.Helper()
			a := observer.next(t)
			if gotSrc, gotDst := addrs(a); gotSrc != src || gotDst != dst || !strings.HasSuffix(string(*a.Payload), long) {
				t.Errorf("observed %v → %v with %d bytes, want %v → %v with all", gotSrc, gotDst, len(*a.Payload), src, dst)
			}
			observer.letGo(t, a)
		}
		for i := range 2 {
			say(t, client, long)
			see(n.a.addr(ipv6), resolver.Addr())
			if i == 0 {
				decide.accept(t, decide.next(t))
			}
			buf := make([]byte, 2000)
			server.SetReadDeadline(time.Now().Add(patience))
			size, src, err := server.ReadFromUDPAddrPort(buf)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := server.WriteToUDPAddrPort(buf[:size], src); err != nil {
				t.Fatal(err)
			}
			see(resolver.Addr(), n.a.addr(ipv6))
			client.SetReadDeadline(time.Now().Add(patience))
			if _, err := client.Read(buf); err != nil {
				t.Error(err)
			}
		}
		if got := counterValue(t, s); got != 1 || len(decide.packets) != 0 {
			t.Errorf("steered %d packets and %d more wait, want 1 and none", got, len(decide.packets))
		}
	})
}

// The messages of a resolver on the own node are observed even without connection tracking, as with
// NodeLocal DNSCache.
func TestResolverOfOwnNodeIsObserved(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		resolver := netip.AddrPortFrom(n.hostAddr(ipv6), 4013)
		mustSync(t, newReal(t, observing), Sets{Observed: []netip.Addr{n.a.v4, n.a.v6}, Servers: []netip.AddrPort{resolver}})
		mustShell(t, `nft -f - <<X
table inet untracked {
	chain in { type filter hook prerouting priority raw; udp dport 4013 notrack; }
	chain out { type filter hook output priority raw; udp sport 4013 notrack; }
}
X`)
		observer := listenTo(t, observeQueue)
		server := (*netns)(nil).receiveAt(t, resolver)
		client := n.a.send(t, resolver)
		say(t, client, "query")
		query := observer.next(t)
		observer.letGo(t, query)
		buf := make([]byte, 100)
		server.SetReadDeadline(time.Now().Add(patience))
		_, src, err := server.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.WriteToUDPAddrPort([]byte("answer"), src); err != nil {
			t.Fatal(err)
		}
		answer := observer.next(t)
		observer.letGo(t, answer)
		if *query.Hook != inputHook || *answer.Hook != postroutingHook {
			t.Errorf("observed at hooks %d and %d, want %d and %d", *query.Hook, *answer.Hook, inputHook, postroutingHook)
		}
		client.SetReadDeadline(time.Now().Add(patience))
		if _, err := client.Read(buf); err != nil {
			t.Error(err)
		}
	})
}

// Two packets of one connection wait in a queue at the same time, each for another backend of a Service
// on another link. If the kernel loses the second one, EarlyAuto must be EarlyOn.
func TestTwoQueuedPacketsOfOneConnectionBothArrive(t *testing.T) {
	for _, early := range []EarlyUDP{EarlyAuto, EarlyOn} {
		t.Run(early.String(), func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, ipv6 bool) {
				n := newNode(t)
				s := newReal(t, func(c *Config) { c.EarlyUDP, c.ObserveQueue = early, observeQueue })
				backends := []netip.AddrPort{netip.AddrPortFrom(n.b.addr(ipv6), 4015), netip.AddrPortFrom(n.outside.addr(ipv6), 4015)}
				mustSync(t, s, Sets{
					Egress:   []netip.Addr{n.a.v4, n.a.v6},
					Observed: []netip.Addr{n.a.v4, n.a.v6}, Servers: backends,
				})
				heard := make(chan string, 3)
				for _, p := range []*netns{n.b, n.outside} {
					go hearAll(p.receive(t, ipv6, 4015), heard)
				}
				decide, observer := listen(t), listenTo(t, observeQueue)
				client := n.a.send(t, service(t, backends...))
				for _, text := range []string{"A", "AAAA"} {
					say(t, client, text)
				}
				for _, l := range []*listener{observer, decide} {
					first, second := l.next(t), l.next(t)
					for _, a := range []nfqueue.Attribute{first, second} {
						if l == decide {
							l.accept(t, a)
						} else {
							l.letGo(t, a)
						}
					}
				}
				got := []string{next(t, heard), next(t, heard)}
				slices.Sort(got)
				if !slices.Equal(got, []string{"A", "AAAA"}) {
					t.Errorf("heard %q, want A and AAAA", got)
				}
				say(t, client, "again")
				observer.letGo(t, observer.next(t))
				if got := next(t, heard); got != "again" {
					t.Errorf("heard %q, want again", got)
				}
				if got := counterValue(t, s); got != 2 {
					t.Errorf("steered %d packets, want 2", got)
				}
			})
		})
	}
}

func TestMessagesAreQueuedWithoutObserver(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		resolver := netip.AddrPortFrom(n.b.addr(ipv6), 4014)
		mustSync(t, newReal(t, observing), Sets{
			Observed: []netip.Addr{n.a.v4, n.a.v6},
			Servers:  []netip.AddrPort{resolver},
			Egress:   []netip.Addr{n.a.v4, n.a.v6},
		})
		decide, server := listen(t), n.b.receive(t, ipv6, resolver.Port())
		say(t, n.a.send(t, resolver), "query")
		decide.accept(t, decide.next(t))
		hear(t, server)
	})
}

// Every Divert that Probe reports as supported works. DIVERTS_REQUIRED lists those that it must report,
// separated by commas.
func TestKernelSupportedDivertsWork(t *testing.T) {
	n := newNode(t)
	caps, err := Probe(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	const port = 4008
	decide, observer := listen(t), listenTo(t, observeQueue)
	to := netip.AddrPortFrom(n.hostAddr(false), port)
	ins := map[netip.AddrPort]*net.UDPConn{
		netip.AddrPortFrom(n.b.v4, port): n.b.receive(t, false, port),
		to:                               (*netns)(nil).receiveAt(t, to),
	}
	for d, missing := range map[Divert]error{DivertQueue: caps.Queue, DivertXTables: caps.XTables} {
		if missing != nil {
			if required := os.Getenv("DIVERTS_REQUIRED"); strings.Contains(required, d.String()) {
				t.Errorf("DIVERTS_REQUIRED=%s: %v", required, missing)
			}
			continue
		}
		sets := isolated(n.b)
		sets.ToHost, sets.Observed = []netip.Addr{n.a.v4}, []netip.Addr{n.a.v4}
		sets.Servers = slices.Collect(maps.Keys(ins))
		mustSync(t, newReal(t, func(c *Config) { c.Divert, c.ObserveQueue = d, observeQueue }), sets)
		for to, in := range ins {
			say(t, n.a.send(t, to), d.String())
			observer.letGo(t, observer.next(t))
			decide.accept(t, decide.next(t))
			if text, _ := hear(t, in); text != d.String() {
				t.Errorf("%v: heard %q", d, text)
			}
		}
	}
}
