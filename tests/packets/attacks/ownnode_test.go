package attacks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

const nodePort = 10250

// denyNode denies the pods app=web all nodes, including their own, at the port.
var denyNode = labtest.Admin("nodes", fmt.Sprintf(`egress: [{name: nodes, action: Deny, to: [{nodes: {}}], ports: [
	{portNumber: {protocol: TCP, port: %[1]d}}, {portNumber: {protocol: UDP, port: %[1]d}}]}]`, nodePort))

// nodeAddresses adds addresses to the node beyond those in its status: on the loopback
// interface, as for load balancers and NodeLocal DNS, and on a further interface. veth
// pairs replace the usual dummy interfaces, which not every kernel has.
const nodeAddresses = `
	ip addr add 192.0.2.1/32 dev lo
	ip addr add 2001:db8:1::1/128 dev lo
	for link in nodelocaldns more; do
		ip link add $link type veth peer name ${link}0
		ip link set $link up
		ip link set ${link}0 up
	done
	ip addr add 169.254.20.10/32 dev nodelocaldns
	ip addr add fd00:20::10/128 dev nodelocaldns nodad
	ip addr add 198.51.100.1/24 dev more
	ip addr add 2001:db8:2::1/64 dev more nodad`

var otherAddrs = []string{"192.0.2.1", "2001:db8:1::1", "169.254.20.10", "fd00:20::10", "198.51.100.1", "2001:db8:2::1", "10.244.1.1", gatewayAddr}

// gatewayAddr is the node's address on the link of each pod, like 10.244.1.1.
const gatewayAddr = "fe80::1"

func script(t *testing.T, host *lab.Host, lines string) {
	t.Helper()
	if _, err := host.Run(t.Context(), lines, "bash", "-e"); err != nil {
		t.Fatal(err)
	}
}

// byLink binds a socket to the pod's link, because link-local addresses are valid only on a
// link.
func byLink(fd int) error {
	return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "eth0")
}

// reaches retries until a TCP connection from the pod to the node succeeds, or until none
// does.
func reaches(t *testing.T, pod *lab.Host, to netip.Addr, want bool) {
	t.Helper()
	var last error
	waitFor(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), labtest.Silence)
		defer cancel()
		conn, err := pod.Dial(ctx, lab.TCP, netip.AddrPortFrom(to, nodePort), byLink)
		if err == nil {
			conn.Close()
		}
		last = err
		return (err == nil) == want
	}, func() string {
		return fmt.Sprintf("%s connects to %s: %v, want %v; %v", pod.Name, to, !want, want, last)
	})
}

// acceptAll accepts connections at all addresses of a node.
func acceptAll(t *testing.T, node *lab.Node) {
	t.Helper()
	listener, err := node.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), nodePort))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed with the node
			}
			conn.Close()
		}
	}()
}

// TestAllAddressesOfTheOwnNode: an administrator who denies nodes denies a pod all traffic
// to its own node, whatever the address.
func TestAllAddressesOfTheOwnNode(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/bad@1 app=web", "y/good@1")
	node, bad, good := c.Nodes[0], c.Hosts["x/bad"], c.Hosts["y/good"]
	script(t, node.Host, nodeAddresses)
	acceptAll(t, node)
	all := slices.Clone(node.Addrs)
	for _, addr := range otherAddrs {
		all = append(all, netip.MustParseAddr(addr))
	}
	for _, addr := range all {
		reaches(t, bad, addr, true)
	}
	agent := c.Start(t, labtest.WithAdmin)[0]
	c.Enforce(t, agent, "admin", denyNode)
	for _, addr := range all {
		reaches(t, bad, addr, false)
		reaches(t, good, addr, true)
	}
	c.Expect(t, labtest.Yes("x/bad", "node-1", "tcp/80"), labtest.Yes("node-1", "x/bad", "tcp/80"), labtest.Yes("x/bad", "y/good", "tcp/80"))
}

// nodeLink returns the hardware address of the node's end of a pod's link.
func nodeLink(t *testing.T, node *lab.Node, pod *lab.Host) net.HardwareAddr {
	t.Helper()
	route, err := node.Run(t.Context(), "", "ip", "-o", "route", "get", pod.Addr(lab.IPv4).String())
	if err != nil {
		t.Fatal(err)
	}
	_, dev, _ := strings.Cut(route, "dev ")
	return labtest.HardwareAddr(t, node, strings.Fields(dev)[0])
}

// otherSources returns datagrams to a port of the node whose sources are not the pod's
// addresses, or whose destination is everyone.
func otherSources(node *lab.Node, pod *lab.Host, local netip.Addr, port uint16) [][]byte {
	own4, own6 := pod.Addr(lab.IPv4), pod.Addr(lab.IPv6)
	data := labtest.UDP(port, port, []byte("payload"))
	six := func(src, dst netip.Addr) []byte { return labtest.IPv6(src, dst, labtest.ProtoUDP, data) }
	four := func(src, dst netip.Addr) []byte { return labtest.IPv4(src, dst, labtest.ProtoUDP, 0, data) }
	gateway, everyone6, everyone4 := netip.MustParseAddr(gatewayAddr), netip.MustParseAddr("ff02::1"), netip.MustParseAddr("255.255.255.255")
	return [][]byte{
		six(local, gateway),
		six(local, node.Addr(lab.IPv6)),
		six(local, netip.MustParseAddr("fd00:20::10")),
		six(local, everyone6),
		six(netip.MustParseAddr("fe80::bad"), gateway), // an address that no link has
		six(own6, gateway),
		six(own6, everyone6),
		four(own4, everyone4),
		four(own4, netip.MustParseAddr("224.0.0.1")),
		four(netip.IPv4Unspecified(), everyone4),
		four(netip.IPv4Unspecified(), netip.MustParseAddr("224.0.0.1")),
	}
}

// TestLinkLocalSourcesToTheOwnNode: pods send to their node from addresses that are not
// theirs but pass the check of sources. The policies of the pod behind the interface apply.
func TestLinkLocalSourcesToTheOwnNode(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/bad@1 app=web", "y/good@1")
	node, bad, good := c.Nodes[0], c.Hosts["x/bad"], c.Hosts["y/good"]
	looseFilter(t, node)
	script(t, node.Host, nodeAddresses)
	count := labtest.NewCounter(t, node, fmt.Sprintf("udp dport { 67, 547, %d }", nodePort))
	send := func(pod *lab.Host) (sent int) {
		t.Helper()
		frames := otherSources(node, pod, linkLocal(labtest.HardwareAddr(t, pod, "eth0")), nodePort)
		for _, frame := range frames {
			labtest.SendFrame(t, pod, nodeLink(t, node, pod), frame)
		}
		return len(frames)
	}
	expectTaken := func(want int) {
		t.Helper()
		waitFor(t, func() bool { return count.Taken(t) == want }, func() string {
			return fmt.Sprintf("%d packets get to the node, want %d", count.Taken(t), want)
		})
	}
	want := send(bad)
	expectTaken(want)

	agent := c.Start(t, labtest.WithAdmin)[0]
	c.Enforce(t, agent, "admin", denyNode)
	before := labtest.Denied(labtest.Metrics(t, agent))
	denied := float64(send(bad))
	if got := labtest.Until(t, agent, before+denied, labtest.Denied) - before; got != denied {
		t.Errorf("%v packets are denied, want %v", got, denied)
	}
	expectTaken(want)
	want += send(good)
	expectTaken(want)

	// Traffic that the network needs still passes.
	discover := labtest.IPv4(netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255"), labtest.ProtoUDP, 0, labtest.UDP(68, 67, nil))
	labtest.SendFrame(t, bad, nodeLink(t, node, bad), discover)
	expectTaken(want + 1)
	for _, host := range []*lab.Host{node.Host, bad} {
		script(t, host, "ip neigh flush all")
	}
	c.Expect(t, labtest.Yes("node-1", "x/bad", "tcp/80"), labtest.Yes("node-1", "x/bad", "icmp"), labtest.Yes("x/bad", "node-1", "tcp/80"))
}

// TestLinkLocalSourcesAtABridge: at a bridge the interface does not identify the pod that
// sent a packet from a link-local address, so the packet is denied if any pod of the bridge
// is denied it.
func TestLinkLocalSourcesAtABridge(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/bad@1 app=web", "y/good@1")
	labtest.BridgePods(t, c)
	node, bad, good := c.Nodes[0], c.Hosts["x/bad"], c.Hosts["y/good"]
	bridge := labtest.HardwareAddr(t, node, "cni0")
	count := labtest.NewCounter(t, node, fmt.Sprintf("udp dport { %d, %d }", nodePort, nodePort+1))
	send := func(pod *lab.Host, src netip.Addr, port uint16) {
		t.Helper()
		data := labtest.UDP(port, port, []byte("payload"))
		labtest.SendFrame(t, pod, bridge, labtest.IPv6(src, netip.MustParseAddr(gatewayAddr), labtest.ProtoUDP, data))
	}
	agent := c.Start(t, labtest.WithAdmin)[0]
	c.Enforce(t, agent, "admin", denyNode)
	before := labtest.Denied(labtest.Metrics(t, agent))
	for _, pod := range []*lab.Host{bad, good} {
		local := linkLocal(labtest.HardwareAddr(t, pod, "eth0"))
		send(pod, local, nodePort)
		send(pod, local, nodePort+1)
	}
	send(bad, bad.Addr(lab.IPv6), nodePort)
	send(good, good.Addr(lab.IPv6), nodePort)
	if got := labtest.Until(t, agent, before+3, labtest.Denied) - before; got != 3 {
		t.Errorf("%v packets are denied, want 3", got)
	}
	waitFor(t, func() bool { return count.Taken(t) == 3 }, func() string {
		return fmt.Sprintf("%d packets get to the node, want 3", count.Taken(t))
	})
}

// TestEstablishedLinkLocalConnections: a pod's connections to its node from or to a
// link-local address end when an administrator denies them, and continue when they are
// allowed again.
func TestEstablishedLinkLocalConnections(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/bad@1 app=web", "y/good@1")
	node := c.Nodes[0]
	script(t, node.Host, nodeAddresses)
	listener, err := node.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), nodePort))
	if err != nil {
		t.Fatal(err)
	}
	open := func(pod, to string) (client, server net.Conn) {
		t.Helper()
		client, err := c.Hosts[pod].Dial(t.Context(), lab.TCP, netip.AddrPortFrom(netip.MustParseAddr(to), nodePort), byLink)
		if err != nil {
			t.Fatal(err)
		}
		if server, err = listener.Accept(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close(); server.Close() })
		return client, server
	}
	agent := c.Start(t, labtest.WithAdmin)[0]
	c.Enforce(t, agent, "other", labtest.Policy("y", "deny", `{podSelector: {}, policyTypes: [Ingress]}`))
	for _, to := range []string{gatewayAddr, "169.254.20.10"} {
		client, server := open("x/bad", to)
		spared, sparing := open("y/good", to)
		if to == gatewayAddr && !strings.HasPrefix(client.LocalAddr().String(), "[fe80::") {
			t.Fatalf("the source is %s", client.LocalAddr())
		}
		says(t, client, server, "before")
		c.Enforce(t, agent, "admin", denyNode)
		reaches(t, c.Hosts["x/bad"], netip.MustParseAddr(to), false)
		if to != gatewayAddr { // with a pod address the connection is blocked a moment later
			waitFor(t, func() bool { return labtest.Metrics(t, agent).Sum("netpol_conntrack_blocked_total") > 0 }, func() string { return "no connection is blocked" })
		}
		if _, err := client.Write([]byte("denied")); err != nil {
			t.Fatal(err)
		}
		says(t, spared, sparing, "spared")
		silent(t, server)
		if err := c.Manifests.Remove("admin"); err != nil {
			t.Fatal(err)
		}
		hears(t, server, "denied")
	}
}

// says sends a word and expects it at the other end.
func says(t *testing.T, from, to net.Conn, word string) {
	t.Helper()
	if _, err := from.Write([]byte(word)); err != nil {
		t.Fatal(err)
	}
	hears(t, to, word)
}

func hears(t *testing.T, conn net.Conn, word string) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(2 * labtest.ChangeTimeout))
	got := make([]byte, len(word))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != word {
		t.Fatalf("%q arrives, want %q: %v", got, word, err)
	}
}

// silent expects that nothing arrives.
func silent(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(labtest.Silence))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes arrive: %v", n, err)
	}
}
