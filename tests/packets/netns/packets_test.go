package netns

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

func random(seed uint64, length int) []byte {
	source := rand.New(rand.NewPCG(seed, 0))
	noise := make([]byte, length)
	for i := range noise {
		noise[i] = byte(source.Uint32())
	}
	return noise
}

// odd is traffic of one kind: packets that the agent sees as one.
type odd struct {
	name    string
	packets [][]byte
}

func one(name string, packet []byte) odd { return odd{name, [][]byte{packet}} }

// oddPackets returns packets that an attacker may try, from src and one port to dst.
func oddPackets(src, dst netip.Addr, port uint16) []odd {
	if src.Is4() {
		simple := func(proto byte, payload []byte) []byte { return labtest.IPv4(src, dst, proto, 0, payload) }
		const more, second = 0x2000, 2 // flag; offset in units of 8 bytes
		return []odd{
			one("TCP without a header", simple(labtest.ProtoTCP, nil)),
			one("TCP with 4 bytes of header", simple(labtest.ProtoTCP, labtest.TCPSYN(port)[:4])),
			one("TCP with 12 bytes of header", simple(labtest.ProtoTCP, labtest.TCPSYN(port)[:12])),
			one("UDP without a header", simple(labtest.ProtoUDP, nil)),
			one("UDP with an empty payload", simple(labtest.ProtoUDP, labtest.UDP(port, 80, nil))),
			one("an empty payload", simple(labtest.ProtoAny, nil)),
			one("random bytes as TCP", simple(labtest.ProtoTCP, random(1, 64))),
			one("random bytes as UDP", simple(labtest.ProtoUDP, random(2, 64))),
			one("random bytes", simple(labtest.ProtoAny, random(3, 1000))),
			{"a first and a later fragment", [][]byte{
				labtest.IPv4(src, dst, labtest.ProtoUDP, more, labtest.UDP(port, 80, make([]byte, 16))[:16]),
				labtest.IPv4(src, dst, labtest.ProtoUDP, second, make([]byte, 8)),
			}},
		}
	}
	simple := func(next byte, payload []byte) []byte { return labtest.IPv6(src, dst, next, payload) }
	return []odd{
		one("TCP without a header", simple(labtest.ProtoTCP, nil)),
		one("TCP with 12 bytes of header", simple(labtest.ProtoTCP, labtest.TCPSYN(port)[:12])),
		one("96 bytes of options before TCP", simple(labtest.ProtoDestOpts, labtest.DestinationOptions(96, labtest.ProtoTCP, labtest.TCPSYN(port)))),
		one("200 bytes of options before TCP", simple(labtest.ProtoDestOpts, labtest.DestinationOptions(200, labtest.ProtoTCP, labtest.TCPSYN(port)))),
		one("1000 bytes of options before TCP", simple(labtest.ProtoDestOpts, labtest.DestinationOptions(1000, labtest.ProtoTCP, labtest.TCPSYN(port)))),
		one("no next header", simple(labtest.ProtoNone, nil)),
		one("UDP without a header", simple(labtest.ProtoUDP, nil)),
		one("random bytes as TCP", simple(labtest.ProtoTCP, random(4, 64))),
		one("random bytes", simple(labtest.ProtoAny, random(5, 1000))),
		{"a first and a later fragment", [][]byte{
			simple(labtest.ProtoFragment, labtest.Fragment6(labtest.ProtoUDP, 0, true, labtest.UDP(port, 80, make([]byte, 16))[:16])),
			simple(labtest.ProtoFragment, labtest.Fragment6(labtest.ProtoUDP, 16, false, make([]byte, 8))),
		}},
	}
}

// TestOddPackets sends packets that are difficult to parse. Without a policy each arrives.
// From a pod that is denied everything except TCP port 443 none arrives, each is counted,
// and the agent continues.
func TestOddPackets(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	agent := c.Start(t)[0]
	from, to := c.Hosts["y/web"], c.Hosts["x/web"]
	arrived, err := to.Capture(func(packet []byte) bool { return labtest.IsFrom(packet, from) })
	if err != nil {
		t.Fatal(err)
	}
	send := func(t *testing.T, kind odd) {
		t.Helper()
		for _, packet := range kind.packets {
			if err := from.SendIP(packet); err != nil {
				t.Fatal(err)
			}
		}
	}
	each := func(name string, port uint16, test func(t *testing.T, kind odd)) {
		for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
			for _, kind := range oddPackets(from.Addr(family), to.Addr(family), port) {
				t.Run(fmt.Sprintf("%s/%s/%s", name, family, kind.name), func(t *testing.T) { test(t, kind) })
			}
		}
	}

	c.Expect(t, labtest.Yes("y/web", "x/web", "tcp/80"))
	each("open", 40000, func(t *testing.T, kind odd) {
		before := arrived.Count()
		send(t, kind)
		if err := labtest.Within(t, func() bool { return arrived.Count() > before }); err != nil {
			t.Error("it does not arrive without a policy, so it proves nothing")
		}
	})

	c.Enforce(t, agent, "policies", onlyDB+labtest.Policy("x", "port", `
  podSelector: {matchLabels: {app: web}}
  ingress: [{ports: [{port: 443}]}]`))
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
	labtest.AwaitVerdicts(t, agent)
	// Protocols without ports reuse their earlier connections, which are blocked now, so the
	// kernel would drop their packets.
	labtest.ForgetConnections(t, c.Nodes[0])
	delivered := arrived.Count()
	// From another port, because the server answered some of the first packets and so
	// established their connections.
	each("denied", 41000, func(t *testing.T, kind odd) {
		before := labtest.Denied(labtest.Metrics(t, agent))
		send(t, kind)
		if got := labtest.Until(t, agent, before+1, labtest.Denied); got != before+1 {
			t.Errorf("denied packets went from %v to %v, want one more", before, got)
		}
		if got := arrived.Count(); got != delivered {
			t.Errorf("%d packets were delivered", got-delivered)
		}
	})
	select {
	case <-agent.Ended():
		t.Fatal("the agent ended")
	default:
	}
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
}

// TestLoneFragmentIsDropped sends only a first or only a later fragment. The kernel waits
// for the rest before it queues the packet, gives up, and counts that.
func TestLoneFragmentIsDropped(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	node := c.Nodes[0]
	c.Start(t)
	for _, key := range []string{"ipv4/ipfrag_time", "netfilter/nf_conntrack_frag6_timeout"} {
		if err := node.Set(key, "1"); err != nil {
			t.Fatal(err)
		}
	}
	from, to := c.Hosts["y/web"], c.Hosts["x/web"]
	arrived, err := to.Capture(func(packet []byte) bool { return labtest.IsFrom(packet, from) })
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(t, "policies", onlyDB)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))

	before, sent := arrived.Count(), 0
	for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
		kinds := oddPackets(from.Addr(family), to.Addr(family), 40000)
		fragments := kinds[len(kinds)-1].packets
		for i, fragment := range fragments {
			fragment = bytes.Clone(fragment)
			if family == lab.IPv4 {
				fragment[5] = byte(i) // of another packet, so that they are not reassembled
			} else {
				fragment[40+7] = byte(i)
			}
			if err := from.SendIP(fragment); err != nil {
				t.Fatal(err)
			}
			sent++
		}
	}
	if err := labtest.Within(t, func() bool { return reassemblyFailures(t, node) >= sent }); err != nil {
		t.Errorf("%d of %d fragments were given up", reassemblyFailures(t, node), sent)
	}
	if got := arrived.Count(); got != before {
		t.Errorf("%d fragments were delivered", got-before)
	}
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
}
