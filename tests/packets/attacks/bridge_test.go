package attacks

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// linkLocal returns the link-local address that the kernel derives from a hardware address
// (RFC 4291, appendix A).
func linkLocal(mac net.HardwareAddr) netip.Addr {
	addr := [16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]}
	return netip.AddrFrom16(addr)
}

// advertisement returns a neighbour discovery message of the given type without options, in
// the form that hosts accept.
func advertisement(src, dst netip.Addr, kind byte) []byte {
	packet := labtest.IPv6(src, dst, 58, append([]byte{kind}, make([]byte, 15)...))
	packet[7] = 255
	return packet
}

// TestBridgedPodsHaveNoOtherAddresses: a pod sends to the pods of its bridge from and to
// addresses that no policy can name: link-local, multicast and broadcast addresses, and
// with the messages of routers. While a policy selects one of the pods, none of these
// packets is delivered.
func TestBridgedPodsHaveNoOtherAddresses(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/bad@1", "y/victim@1", "z/other@1")
	labtest.BridgePods(t, c)
	bad, victim := c.Hosts["x/bad"], c.Hosts["y/victim"]
	mac := labtest.HardwareAddr(t, victim, "eth0")
	everyone := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	own4, own6, local := bad.Addr(lab.IPv4), bad.Addr(lab.IPv6), linkLocal(labtest.HardwareAddr(t, bad, "eth0"))
	all6 := netip.MustParseAddr("ff02::1")
	// Every frame is a connection of its own. The node itself receives some of them, so they become
	// tracked connections, and the agent blocks those before another rule counts their packets.
	port := uint16(sinkPort)
	data := func() []byte {
		port++
		return labtest.UDP(port, sinkPort, []byte("payload"))
	}
	frames := []struct {
		to     net.HardwareAddr
		packet []byte
	}{
		{mac, labtest.IPv6(local, linkLocal(mac), labtest.ProtoUDP, data())},
		{mac, labtest.IPv6(local, victim.Addr(lab.IPv6), labtest.ProtoUDP, data())},
		{mac, labtest.IPv6(own6, linkLocal(mac), labtest.ProtoUDP, data())},
		{mac, labtest.IPv6(local, linkLocal(mac), labtest.ProtoTCP, labtest.TCPSYN(4000))},
		{everyone, labtest.IPv6(own6, all6, labtest.ProtoUDP, data())},
		{mac, labtest.IPv6(own6, all6, labtest.ProtoUDP, data())},
		{everyone, labtest.IPv4(own4, netip.MustParseAddr("255.255.255.255"), labtest.ProtoUDP, 0, data())},
		{everyone, labtest.IPv4(own4, netip.MustParseAddr("10.244.1.255"), labtest.ProtoUDP, 0, data())},
		{everyone, labtest.IPv4(own4, netip.MustParseAddr("224.0.0.1"), labtest.ProtoUDP, 0, data())},
		{mac, labtest.IPv4(own4, netip.MustParseAddr("224.0.0.1"), labtest.ProtoUDP, 0, data())},
		{everyone, advertisement(local, all6, 134)},                               // a router advertisement
		{mac, advertisement(local, victim.Addr(lab.IPv6), 137)},                   // a redirect
		{everyone, labtest.IPv6(local, all6, 58, []byte{135, 0, 0, 0, 'd', 'a'})}, // discovery that was forwarded
	}
	// The pod's kernel also sends neighbour and listener discovery.
	arrived, err := victim.Capture(func(packet []byte) bool {
		switch {
		case len(packet) > 20 && packet[0]>>4 == 4:
			return netip.AddrFrom4([4]byte(packet[12:])) == own4 && packet[9] == labtest.ProtoUDP
		case len(packet) > 40 && packet[0]>>4 == 6:
			next, hops, kind := packet[6], packet[7], packet[40]
			return slices.Contains([]netip.Addr{own6, local}, netip.AddrFrom16([16]byte(packet[8:]))) &&
				(next == labtest.ProtoUDP || next == labtest.ProtoTCP || next == 58 && (hops != 255 || kind == 134 || kind == 137))
		}
		return false
	})
	if err != nil {
		t.Fatal(err)
	}
	send := func() {
		t.Helper()
		for _, frame := range frames {
			labtest.SendFrame(t, bad, frame.to, frame.packet)
		}
	}
	send()
	waitFor(t, func() bool { return arrived.Count() >= len(frames) }, func() string {
		return fmt.Sprintf("without an agent %d of %d frames arrive", arrived.Count(), len(frames))
	})

	agent := c.Start(t)[0]
	c.Enforce(t, agent, "x", isolateX)
	c.Enforce(t, agent, "y", labtest.Policy("y", "deny", `{podSelector: {}, policyTypes: [Ingress]}`))
	c.Expect(t, labtest.No("x/bad", "z/other", "udp/80"), labtest.No("z/other", "y/victim", "tcp/80"),
		labtest.Yes("y/victim", "z/other", "tcp/80"), labtest.Yes("node-1", "y/victim", "icmp"), labtest.Yes("z/other", "node-1", "tcp/80"))
	dropped := func(m lab.Metrics) float64 { return m.Sum("netpol_table_dropped_packets_total", "reason", "link") }
	before := dropped(labtest.Metrics(t, agent))
	delivered := arrived.Count()
	send()
	// A frame to everyone is dropped once for each port to which it would be sent.
	want := before
	for _, frame := range frames {
		want++
		if frame.to.String() == everyone.String() {
			want++
		}
	}
	if got := labtest.Until(t, agent, want, dropped); got < want {
		t.Errorf("%v packets were dropped, want %v", got-before, want-before)
	}
	if n := arrived.Count() - delivered; n != 0 {
		t.Errorf("%d of %d frames were delivered", n, len(frames))
	}

	// Neighbour discovery still works.
	for _, name := range []string{"y/victim", "z/other"} {
		if _, err := c.Hosts[name].Run(t.Context(), "", "ip", "neigh", "flush", "all"); err != nil {
			t.Fatal(err)
		}
	}
	c.Expect(t, labtest.Yes("y/victim", "z/other", "tcp/80"))
	neighbours, err := c.Hosts["y/victim"].Run(t.Context(), "", "ip", "neigh")
	if err != nil || !strings.Contains(neighbours, c.Hosts["z/other"].Addr(lab.IPv6).String()) {
		t.Errorf("%v: y/victim has not found z/other, but %s", err, neighbours)
	}
}

// TestConnectionsOfNoPodEnd: before the first policy, two pods of a bridge open connections
// between addresses that belong to no pod. The policy ends them in both directions. A reply
// from a multicast or broadcast address is forged so that the connection becomes
// established.
func TestConnectionsOfNoPodEnd(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/bad@1", "y/victim@1")
	labtest.BridgePods(t, c)
	bad, victim := c.Hosts["x/bad"], c.Hosts["y/victim"]
	macs := map[*lab.Host]net.HardwareAddr{bad: labtest.HardwareAddr(t, bad, "eth0"), victim: labtest.HardwareAddr(t, victim, "eth0")}
	own4, own6 := bad.Addr(lab.IPv4), bad.Addr(lab.IPv6)
	// Not addresses of the kernels, which would answer.
	link, other := netip.MustParseAddr("fe80::bad"), netip.MustParseAddr("fe80::cafe")
	secret := []byte("past every policy")
	udp := func(src, dst netip.Addr) []byte {
		data := labtest.UDP(sinkPort, sinkPort, secret)
		if src.Is4() {
			return labtest.IPv4(src, dst, labtest.ProtoUDP, 0, data)
		}
		return labtest.IPv6(src, dst, labtest.ProtoUDP, data)
	}
	var arrived []*lab.Capture
	for _, host := range []*lab.Host{bad, victim} {
		capture, err := host.Capture(func(packet []byte) bool { return bytes.Contains(packet, secret) })
		if err != nil {
			t.Fatal(err)
		}
		arrived = append(arrived, capture)
	}
	count := func() int { return arrived[0].Count() + arrived[1].Count() }
	send := func() (sent int) {
		t.Helper()
		for _, ends := range [][2]netip.Addr{
			{link, other}, {own6, other}, {own6, netip.MustParseAddr("ff02::1")},
			{own4, netip.MustParseAddr("169.254.1.2")}, {netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("169.254.1.2")},
			{own4, netip.MustParseAddr("224.0.0.1")}, {own4, netip.MustParseAddr("255.255.255.255")}, {own4, netip.MustParseAddr("10.244.1.255")},
		} {
			labtest.SendFrame(t, bad, macs[victim], udp(ends[0], ends[1]))
			labtest.SendFrame(t, victim, macs[bad], udp(ends[1], ends[0]))
			sent += 2
		}
		return sent
	}
	agent := c.Start(t)[0] // makes the kernel track connections
	c.Expect(t, labtest.Yes("x/bad", "y/victim", "tcp/80"))
	want := send()
	waitFor(t, func() bool { return count() == want }, func() string {
		return fmt.Sprintf("without a policy %d of %d packets arrive", count(), want)
	})

	c.Enforce(t, agent, "y", labtest.Policy("y", "deny", `{podSelector: {}, policyTypes: [Ingress]}`))
	c.Expect(t, labtest.No("x/bad", "y/victim", "udp/80"))
	dropped := func(m lab.Metrics) float64 {
		return m.Sum("netpol_table_dropped_packets_total", "reason", "link") + forgedSources(m)
	}
	before := dropped(labtest.Metrics(t, agent))
	sent := float64(send())
	if got := labtest.Until(t, agent, before+sent, dropped) - before; got != sent {
		t.Errorf("%v packets were dropped, want %v", got, sent)
	}
	if n := count() - want; n != 0 {
		t.Errorf("%d of %v packets were delivered", n, sent)
	}
}

// TestUnusedAddressesOfABridge: an administrator denies a pod its node, and the pod sends
// there from unused addresses of the bridge's network. These packets wait like those of a
// new pod, and a new pod's packets pass once it is known.
func TestUnusedAddressesOfABridge(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/bad@1 app=web", "y/other@1")
	fresh := c.Attach(t, labtest.NewPod("z/fresh@1"))[0]
	labtest.BridgePods(t, c)
	node, bad := c.Nodes[0], c.Hosts["x/bad"]
	unused := []netip.Addr{netip.MustParseAddr("10.244.1.77"), netip.MustParseAddr("fd00:10:244:1::77")}
	payload := datagram(unused[0], unused[0])[20:]
	var arrived atomic.Int64
	if err := node.Receive(labtest.ProtoUDP, func(_, _ netip.Addr, got []byte) {
		if bytes.HasPrefix(got, payload[:4]) {
			arrived.Add(1)
		}
	}); err != nil {
		t.Fatal(err)
	}
	agent := c.Start(t, labtest.WithAdmin)[0]
	sent := sendFrom(t, bad, node.Host, unused)
	waitFor(t, func() bool { return arrived.Load() == int64(sent) }, func() string {
		return fmt.Sprintf("without a policy %d of %d packets arrive", arrived.Load(), sent)
	})

	c.Enforce(t, agent, "admin", labtest.Admin("nodes", `egress: [{name: nodes, action: Deny, to: [{nodes: {}}]}]`))
	c.Expect(t, labtest.No("x/bad", "node-1", "tcp/80"), labtest.Yes("y/other", "node-1", "tcp/80"), labtest.Yes("node-1", "x/bad", "tcp/80"),
		labtest.No("z/fresh", "node-1", "tcp/80"))
	labtest.ForgetConnections(t, node)
	before := labtest.Denied(labtest.Metrics(t, agent))
	delivered := arrived.Load()
	want := before + float64(sendFrom(t, bad, node.Host, unused))
	if got := labtest.Until(t, agent, want, labtest.Denied); got < want {
		t.Errorf("%v packets were denied, want %v", got-before, want-before)
	}
	if n := arrived.Load() - delivered; n != 0 {
		t.Errorf("%d packets were delivered", n)
	}

	c.Put(t, labtest.PodFile("z/fresh"), fresh.Object)
	for _, name := range []string{"z/fresh", "y/other"} {
		if _, err := c.Hosts[name].Run(t.Context(), "", "ip", "neigh", "flush", "all"); err != nil {
			t.Fatal(err)
		}
	}
	c.Expect(t, labtest.Yes("z/fresh", "node-1", "tcp/80"), labtest.Yes("y/other", "node-1", "icmp"), labtest.Yes("node-1", "z/fresh", "icmp"))
}
