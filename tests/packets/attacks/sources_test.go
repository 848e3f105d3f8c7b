package attacks

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// isolateX denies all egress of the pods in namespace x.
var isolateX = labtest.Policy("x", "deny", `{podSelector: {}, policyTypes: [Egress]}`)

// sinkPort is the destination of forged packets.
const sinkPort = 4000

// forgedSources returns how many packets were dropped because of their source.
func forgedSources(m lab.Metrics) float64 {
	return m.Sum("netpol_table_dropped_packets_total", "reason", "forged_source")
}

// datagram returns a whole IP packet to the sink's port.
func datagram(src, dst netip.Addr) []byte {
	payload := labtest.UDP(sinkPort, sinkPort, []byte("payload"))
	if src.Is4() {
		return labtest.IPv4(src, dst, labtest.ProtoUDP, 0, payload)
	}
	return labtest.IPv6(src, dst, labtest.ProtoUDP, payload)
}

// sink counts the datagrams that arrive at a host, whatever their source.
func sink(t *testing.T, host *lab.Host) *lab.Capture {
	t.Helper()
	capture, err := host.Capture(func(packet []byte) bool {
		switch {
		case len(packet) >= 24 && packet[0]>>4 == 4:
			return packet[9] == labtest.ProtoUDP && [2]byte(packet[22:24]) == [2]byte{sinkPort >> 8, sinkPort & 0xff}
		case len(packet) >= 44 && packet[0]>>4 == 6:
			return packet[6] == labtest.ProtoUDP && [2]byte(packet[42:44]) == [2]byte{sinkPort >> 8, sinkPort & 0xff}
		}
		return false
	})
	if err != nil {
		t.Fatal(err)
	}
	return capture
}

// sendFrom sends one datagram to the sink from each address and returns their number.
func sendFrom(t *testing.T, host *lab.Host, to *lab.Host, sources []netip.Addr) int {
	t.Helper()
	for _, src := range sources {
		dst := to.Addr(lab.IPv6)
		if src.Is4() {
			dst = to.Addr(lab.IPv4)
		}
		if err := host.SendIP(datagram(src, dst)); err != nil {
			t.Fatal(err)
		}
	}
	return len(sources)
}

// looseFilter disables the kernel's own check of sources, like many distributions.
func looseFilter(t *testing.T, node *lab.Node) {
	t.Helper()
	for _, key := range []string{"ipv4/conf/all/rp_filter", "ipv4/conf/default/rp_filter"} {
		if err := node.Set(key, "0"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForgedSources: an isolated pod and a pod that has just started send packets with
// forged sources: addresses of a pod that no policy isolates, of both nodes, and an unused
// one. All are dropped and counted.
func TestForgedSources(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/bad@1", "y/good@1", "z/sink@2")
	looseFilter(t, c.Nodes[0])
	bad, target := c.Hosts["x/bad"], c.Hosts["z/sink"]
	arrived := sink(t, target)
	forged := append(append(append(append([]netip.Addr{
		netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")},
		c.Addrs(t, "y/good")...), c.Addrs(t, "z/sink")...), c.Addrs(t, "node-1")...), c.Addrs(t, "node-2")...)
	// The kernel rejects the node's own IPv4 addresses and accepts the others.
	passing := []netip.Addr{forged[0], forged[1], c.Hosts["y/good"].Addr(lab.IPv4), c.Hosts["y/good"].Addr(lab.IPv6)}

	sent := sendFrom(t, bad, target, passing)
	waitFor(t, func() bool { return arrived.Count() == sent }, func() string {
		return fmt.Sprintf("without an agent %d of %d forged packets arrive", arrived.Count(), sent)
	})

	agent := c.Start(t)[0]
	c.Enforce(t, agent, "policies", isolateX)
	c.Expect(t, labtest.No("x/bad", "z/sink", "udp/80"), labtest.Yes("y/good", "z/sink", "udp/80"))
	if n := forgedSources(labtest.Metrics(t, agent)); n != 0 {
		t.Errorf("%v packets with true sources were dropped because of their source", n)
	}
	before, want := arrived.Count(), 0
	for range 10 {
		want += sendFrom(t, bad, target, forged)
	}
	fresh := c.Attach(t, labtest.NewPod("z/fresh@1"))[0]
	want += sendFrom(t, fresh.Host, target, passing)
	if got := labtest.Until(t, agent, float64(want), forgedSources); got != float64(want) {
		t.Errorf("%v of %d forged packets were dropped", got, want)
	}
	if n := arrived.Count() - before; n != 0 {
		t.Errorf("%d forged packets were delivered", n)
	}

	c.Put(t, labtest.PodFile("z/fresh"), fresh.Object)
	c.Expect(t, labtest.Yes("z/fresh", "z/sink", "udp/80"), labtest.Yes("z/sink", "z/fresh", "tcp/80"), labtest.Yes("node-1", "z/fresh", "icmp"),
		labtest.Yes("z/fresh", "node-1", "tcp/80"), labtest.Yes("node-2", "z/fresh", "tcp/80"))
	if got := forgedSources(labtest.Metrics(t, agent)); got != float64(want) {
		t.Errorf("%v packets with true sources were dropped because of their source", got-float64(want))
	}
}

// TestForgedSourcesOfAnExemptInterface tests --source-check-exempt.
func TestForgedSourcesOfAnExemptInterface(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/bad@1", "y/good@1", "z/sink@2")
	looseFilter(t, c.Nodes[0])
	arrived := sink(t, c.Hosts["z/sink"])
	agent := c.Start(t, "--source-check-exempt=pod*")[0]
	c.Enforce(t, agent, "policies", isolateX)
	c.Expect(t, labtest.No("x/bad", "z/sink", "udp/80"), labtest.Yes("y/good", "z/sink", "udp/80"))
	sent := sendFrom(t, c.Hosts["x/bad"], c.Hosts["z/sink"], c.Addrs(t, "y/good"))
	waitFor(t, func() bool { return arrived.Count() == sent }, func() string {
		return fmt.Sprintf("%d of %d packets arrive", arrived.Count(), sent)
	})
}

// TestAsymmetricUplinks: packets of another node arrive at a second uplink, and their
// replies leave through the first. They do not count as forged.
func TestAsymmetricUplinks(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/bad@1", "y/good@1", "z/peer@2")
	one, two := c.Nodes[0], c.Nodes[1]
	looseFilter(t, one)
	looseFilter(t, two)
	agent := c.Start(t)[0]
	c.Apply(t, "policies", isolateX)
	c.Expect(t, labtest.No("x/bad", "z/peer", "tcp/80"), labtest.Yes("z/peer", "y/good", "tcp/80"))

	run := func(node *lab.Node, lines string) {
		t.Helper()
		if _, err := node.Run(t.Context(), lines, "ip", "-batch", "-"); err != nil {
			t.Fatal(err)
		}
	}
	run(one, fmt.Sprintf("link add up1 index 900 type veth peer name up1 netns %s\n", two.NetNS())+
		"addr add 172.19.0.1/24 dev up1\naddr add fd00:172:19::1/64 dev up1 nodad\nlink set up1 up\n"+
		"route add 203.0.113.0/24 via 172.19.0.2\n")
	run(two, "route add default via 172.18.0.1\n"+ // the first uplink stays an uplink
		"addr add 172.19.0.2/24 dev up1\naddr add fd00:172:19::2/64 dev up1 nodad\nlink set up1 up\n"+
		"route replace 10.244.1.0/24 via 172.19.0.1\nroute replace fd00:10:244:1::/64 via fd00:172:19::1\n")
	reach := []labtest.Expectation{labtest.Yes("z/peer", "y/good", "tcp/80"), labtest.Yes("z/peer", "x/bad", "tcp/80"), labtest.Yes("node-2", "y/good", "tcp/80")}
	c.Expect(t, reach...) // packets of up1 are dropped until the agent has read it
	before := forgedSources(labtest.Metrics(t, agent))
	c.Expect(t, reach...)
	if n := forgedSources(labtest.Metrics(t, agent)) - before; n > 0 {
		t.Errorf("%v packets of the second uplink were dropped", n)
	}
}

// waitFor waits until a condition holds. problem describes the failure if it never does.
func waitFor(t *testing.T, holds func() bool, problem func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.ChangeTimeout)
	defer cancel()
	err := lab.Poll(ctx, func() (bool, error) { return holds(), nil })
	if err != nil {
		t.Fatal(problem())
	}
}
