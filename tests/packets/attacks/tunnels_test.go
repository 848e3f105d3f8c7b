package attacks

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

const (
	vxlanPort = 8472
	protoIPIP = 4
)

// fromFriends allows only the pods of namespace y to connect to those of z.
var fromFriends = labtest.Policy("z", "friends", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: y}}}]}]}`)

// podTunnels returns how many packets of pods to tunnels of their node were dropped.
func podTunnels(m lab.Metrics) float64 {
	return m.Sum("netpol_table_dropped_packets_total", "reason", "tunnel")
}

// unpack makes a node decapsulate VXLAN, GRE and IPIP, the last two over IPv4, as tunnel
// devices would, and forward the inner packets.
func unpack(t *testing.T, node *lab.Node) {
	t.Helper()
	forward := func(inner []byte) {
		if err := node.SendIP(inner); err != nil {
			t.Errorf("forward: %v", err)
		}
	}
	for protocol, header := range map[int]int{protoIPIP: 0, protoGRE: 4} {
		if err := node.Receive(protocol, func(_, _ netip.Addr, payload []byte) {
			if len(payload) > header && payload[header]>>4 == 4 {
				forward(payload[header:])
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := node.Receive(labtest.ProtoUDP, func(_, _ netip.Addr, payload []byte) {
		if len(payload) > 16 && binary.BigEndian.Uint16(payload[2:]) == vxlanPort {
			forward(payload[16:])
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// wrapped returns inner encapsulated from src to dst, once for each kind of tunnel.
func wrapped(src, dst netip.Addr, inner []byte) [][]byte {
	vxlan := labtest.UDP(40000, vxlanPort, append(make([]byte, 8), inner...))
	if src.Is6() {
		return [][]byte{labtest.IPv6(src, dst, labtest.ProtoUDP, vxlan)}
	}
	gre := append([]byte{0, 0, 0x08, 0x00}, inner...)
	return [][]byte{
		labtest.IPv4(src, dst, labtest.ProtoUDP, 0, vxlan),
		labtest.IPv4(src, dst, protoGRE, 0, gre),
		labtest.IPv4(src, dst, protoIPIP, 0, inner),
	}
}

// TestPodsSendIntoTunnels: an isolated pod sends encapsulated packets to its own node. The
// inner packets are from an allowed pod to a protected one. None arrives, but what another
// node encapsulates does.
func TestPodsSendIntoTunnels(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/bad@1", "y/friend@2", "z/protected@1")
	target := c.Hosts["z/protected"]
	arrived := sink(t, target)
	unpack(t, c.Nodes[0])
	send := func(sender *lab.Host) (sent int) {
		t.Helper()
		for _, from := range sender.Addrs {
			family := lab.IPv6
			if from.Is4() {
				family = lab.IPv4
			}
			inner := datagram(c.Hosts["y/friend"].Addr(family), target.Addr(family))
			for _, packet := range wrapped(from, c.Nodes[0].Addr(family), labtest.Finished(inner)) {
				if err := sender.SendIP(packet); err != nil {
					t.Fatal(err)
				}
				sent++
			}
		}
		return sent
	}
	arrive := func(want int, what string) {
		t.Helper()
		waitFor(t, func() bool { return arrived.Count() == want }, func() string {
			return fmt.Sprintf("%s: %d packets came out of tunnels, want %d", what, arrived.Count(), want)
		})
	}
	want := send(c.Hosts["x/bad"])
	arrive(want, "without an agent")

	agent := c.Start(t, fmt.Sprintf("--tunnel-ports=%d", vxlanPort))[0]
	c.Enforce(t, agent, "isolated", isolateX)
	c.Enforce(t, agent, "friends", fromFriends)
	c.Expect(t, labtest.No("x/bad", "y/friend", "udp/80"), labtest.No("x/bad", "z/protected", "udp/80"), labtest.Yes("y/friend", "z/protected", "udp/80"))
	dropped := 0
	for range 5 {
		dropped += send(c.Hosts["x/bad"])
	}
	if got := labtest.Until(t, agent, float64(dropped), podTunnels); got != float64(dropped) {
		t.Errorf("%v of %d packets to tunnels were dropped", got, dropped)
	}
	want += send(c.Nodes[1].Host)
	arrive(want, "from the other node")
	c.Expect(t, labtest.Yes("x/bad", "node-1", "udp/80"), labtest.Yes("y/friend", "z/protected", "tcp/80"))
}

// TestPodsSendIntoAllowedTunnels tests --tunnel-ports.
func TestPodsSendIntoAllowedTunnels(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/bad@1", "z/sink@1")
	arrived := sink(t, c.Hosts["z/sink"])
	unpack(t, c.Nodes[0])
	agent := c.Start(t, "--tunnel-ports=8472", "--pod-tunnels=udp/8472,gre")[0]
	c.Enforce(t, agent, "policies", isolateX)
	c.Expect(t, labtest.No("x/bad", "z/sink", "udp/80"))
	bad, node := c.Hosts["x/bad"], c.Nodes[0]
	inner := labtest.Finished(datagram(node.Addr(lab.IPv4), c.Hosts["z/sink"].Addr(lab.IPv4)))
	for _, packet := range wrapped(bad.Addr(lab.IPv4), node.Addr(lab.IPv4), inner) {
		if err := bad.SendIP(packet); err != nil {
			t.Fatal(err)
		}
	}
	if got := labtest.Until(t, agent, 1, podTunnels); got != 1 {
		t.Errorf("%v packets were dropped, want that of IPIP", got)
	}
	waitFor(t, func() bool { return arrived.Count() == 2 }, func() string {
		return fmt.Sprintf("%d packets came out of tunnels, want 2", arrived.Count())
	})
}

// TestPodsSendIntoDevices is TestPodsSendIntoTunnels with a kernel device whose port the
// agent detects.
func TestPodsSendIntoDevices(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/bad@1", "y/friend@2", "z/protected@1")
	node, target := c.Nodes[0], c.Hosts["z/protected"]
	out, err := node.Run(t.Context(), "", "ip", "link", "add", "flannel.1", "address", "02:00:00:00:00:01", "type", "vxlan", "id", "1", "dstport", "8472", "local", node.Addr(lab.IPv4).String(), "nolearning")
	if strings.Contains(out, "Unknown device type") || strings.Contains(out, "not supported") {
		t.Skip("the kernel has no vxlan") // a skip even where netns tests are required
	}
	if err != nil {
		t.Fatal(err, out)
	}
	looseFilter(t, node)
	if _, err := node.Run(t.Context(), "addr add 10.244.1.0/32 dev flannel.1\nlink set flannel.1 up\n", "ip", "-batch", "-"); err != nil {
		t.Fatal(err)
	}
	arrived := sink(t, target)
	inner := labtest.Finished(datagram(c.Hosts["y/friend"].Addr(lab.IPv4), target.Addr(lab.IPv4)))
	ethernet := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00}
	header := []byte{0x08, 0, 0, 0, 0, 0, 1, 0}
	send := func(sender *lab.Host) {
		t.Helper()
		conn := openUDP(t, sender, netip.AddrPortFrom(node.Addr(lab.IPv4), vxlanPort))
		if _, err := conn.Write(append(append(header[:8:8], ethernet...), inner...)); err != nil {
			t.Fatal(err)
		}
	}
	send(c.Hosts["x/bad"])
	waitFor(t, func() bool { return arrived.Count() == 1 }, func() string { return "the device delivers nothing" })

	agent := c.Start(t)[0]
	c.Enforce(t, agent, "isolated", isolateX)
	c.Enforce(t, agent, "friends", fromFriends)
	c.Expect(t, labtest.No("x/bad", "z/protected", "udp/80"), labtest.Yes("y/friend", "z/protected", "udp/80"))
	send(c.Hosts["x/bad"])
	if got := labtest.Until(t, agent, 1, podTunnels); got != 1 {
		t.Errorf("%v packets were dropped, want 1", got)
	}
	send(c.Nodes[1].Host)
	waitFor(t, func() bool { return arrived.Count() == 2 }, func() string {
		return fmt.Sprintf("%d packets came out of the tunnel, want 2", arrived.Count())
	})
}

func openUDP(t *testing.T, host *lab.Host, to netip.AddrPort) net.Conn {
	t.Helper()
	conn, err := host.Dial(context.Background(), lab.UDP, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
