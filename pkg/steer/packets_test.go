package steer

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// bothFamilies runs f for IPv4 and IPv6.
func bothFamilies(t *testing.T, f func(t *testing.T, ipv6 bool)) {
	t.Run("IPv4", func(t *testing.T) { f(t, false) })
	t.Run("IPv6", func(t *testing.T) { f(t, true) })
}

// isolated wishes to ask about all that comes to p.
func isolated(p *place) Sets {
	return Sets{Ingress: []netip.Addr{p.v4, p.v6}, Since: time.Now()}
}

func TestHeldPacketsSurviveSyncsAndARestart(t *testing.T) {
	n := newNode(t)
	const held, port = 150, 4001
	s := newReal(t, nil)
	sets := isolated(n.b)
	mustSync(t, s, sets)
	l := listen(t)
	in := n.b.receive(t, false, port)
	waiting := make([]func(), held)
	for i := range waiting {
		say(t, n.a.send(t, netip.AddrPortFrom(n.b.v4, port)), fmt.Sprint(i))
		a := l.next(t)
		waiting[i] = func() { l.accept(t, a) }
	}

	r := rand.New(rand.NewPCG(1, 2))
	for i := range 100 {
		more := randomSets(r)
		more.Ingress = append(more.Ingress, sets.Ingress...)
		if i%10 == 0 { // a new agent, which also probes
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
	if got = slices.Compact(got); len(got) != held {
		t.Errorf("%d of %d packets arrived", len(got), held)
	}
}

func TestOneWayFlowIsAskedAboutOnceAndMarksOfOthersStay(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		s := newReal(t, nil)
		mustSync(t, s, isolated(n.b))
		// Others mark packet and connection before us and look behind us.
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

func TestRepliesAreNotAskedAbout(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		s := newReal(t, nil)
		mustSync(t, s, isolated(n.b)) // b asks, a answers
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

func TestOwnNodeIsNotAskedAbout(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		s := newReal(t, nil)
		mustSync(t, s, isolated(n.b))
		mustShell(t, "ip neigh flush all") // so that discovery comes first
		const port = 4004
		in := n.b.receive(t, ipv6, port)
		var node *place
		say(t, node.send(t, netip.AddrPortFrom(n.b.addr(ipv6), port)), "probe")
		hear(t, in)
		if got := counterValue(t, s); got != 0 {
			t.Errorf("steered %d packets, want 0", got)
		}
	})
}

// A pod that may do what it likes in its own network takes an address of its
// node. The kernel stops it for IPv4.
func TestAForgedAddressOfTheNodeIsAskedAbout(t *testing.T) {
	n := newNode(t)
	s, l := newReal(t, nil), listen(t)
	mustSync(t, s, isolated(n.b))
	forged := n.b.v6.Prev() // the node's on the link to b
	mustShell(t, fmt.Sprintf("ip -n %s addr add %v/128 dev lo nodad", n.a.name, forged))
	t.Cleanup(func() { mustShell(t, fmt.Sprintf("ip -n %s addr del %v/128 dev lo", n.a.name, forged)) })
	pod := *n.a
	pod.v6 = forged
	from := pod.receive(t, true, 4009)
	if _, err := from.WriteToUDPAddrPort([]byte("forged"), netip.AddrPortFrom(n.b.v6, 4009)); err != nil {
		t.Fatal(err)
	}
	if src, _ := addrs(l.next(t)); src != forged {
		t.Errorf("asked about a packet of %v, want %v", src, forged)
	}
}

func TestServiceIsAskedAboutBehindDNATAndBeforeMasquerade(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		mustSync(t, newReal(t, nil), isolated(n.b))
		const port = 4005
		vip := netip.MustParseAddr("10.96.0.1")
		to, gateway := fmt.Sprintf("ip to %v:%d", n.b.v4, port), n.b.v4.Prev()
		if ipv6 {
			vip = netip.MustParseAddr("fd00:10:96::1")
			to, gateway = fmt.Sprintf("ip6 to [%v]:%d", n.b.v6, port), n.b.v6.Prev()
		}
		mustShell(t, fmt.Sprintf(`nft -f - <<X
table inet proxy {
	chain services {
		type nat hook prerouting priority dstnat;
		udp dport 53 dnat %s
	}
	chain clients {
		type nat hook postrouting priority srcnat;
		oifname steer-b masquerade
	}
}
X`, to))
		l := listen(t)
		in := n.b.receive(t, ipv6, port)
		say(t, n.a.send(t, netip.AddrPortFrom(vip, 53)), "query")
		a := l.next(t)
		if src, dst := addrs(a); src != n.a.addr(ipv6) || dst != n.b.addr(ipv6) {
			t.Errorf("asked about %v → %v, want %v → %v", src, dst, n.a.addr(ipv6), n.b.addr(ipv6))
		}
		l.accept(t, a)
		if _, src := hear(t, in); src != gateway {
			t.Errorf("the pod hears %v, want the masqueraded %v", src, gateway)
		}
	})
}

func TestUnknownPodOfTheRangeIsAskedAbout(t *testing.T) {
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
			t.Errorf("asked about %v, want %v", dst, n.b.addr(ipv6))
		}
	})
}

func TestWithoutAListenerBypassDecides(t *testing.T) {
	bothFamilies(t, func(t *testing.T, ipv6 bool) {
		n := newNode(t)
		const port = 4007
		in := n.b.receive(t, ipv6, port)
		for _, bypass := range []bool{false, true} {
			s := newReal(t, func(c *Config) { c.Bypass = bypass })
			mustSync(t, s, isolated(n.b))
			before := counterValue(t, s)
			say(t, n.a.send(t, netip.AddrPortFrom(n.b.addr(ipv6), port)), fmt.Sprint("bypass ", bypass))
			if bypass { // had the first one passed, it would be heard first
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

// TestEveryDivertOfTheKernelWorks tries what the probe found. DIVERTS_REQUIRED
// names, separated by commas, what it must have found.
func TestEveryDivertOfTheKernelWorks(t *testing.T) {
	n := newNode(t)
	caps, err := Probe(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	const port = 4008
	l, in := listen(t), n.b.receive(t, false, port)
	for d, missing := range map[Divert]error{DivertQueue: caps.Queue, DivertXTables: caps.XTables} {
		if missing != nil {
			if required := os.Getenv("DIVERTS_REQUIRED"); strings.Contains(required, d.String()) {
				t.Errorf("DIVERTS_REQUIRED=%s: %v", required, missing)
			}
			continue
		}
		mustSync(t, newReal(t, func(c *Config) { c.Divert = d }), isolated(n.b))
		say(t, n.a.send(t, netip.AddrPortFrom(n.b.v4, port)), d.String())
		l.accept(t, l.next(t))
		if text, _ := hear(t, in); text != d.String() {
			t.Errorf("%v: heard %q", d, text)
		}
	}
}
