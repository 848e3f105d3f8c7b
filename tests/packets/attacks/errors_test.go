package attacks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// secret is the payload by which forged ICMP errors are recognised.
var secret = []byte("a secret that an ICMP error carries")

// onesComplement returns the Internet checksum of the parts (RFC 1071).
func onesComplement(parts ...[]byte) uint16 {
	var sum uint32
	for _, part := range parts {
		for i := 0; i+1 < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
		if len(part)%2 == 1 {
			sum += uint32(part[len(part)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// unreachable returns an ICMP error from src about a datagram from client to server. It
// contains the datagram, whose payload is the secret.
func unreachable(src netip.Addr, client, server netip.AddrPort) []byte {
	about := labtest.UDP(client.Port(), server.Port(), secret)
	if src.Is4() {
		message := append([]byte{3, 3, 0, 0, 0, 0, 0, 0}, labtest.Finished(labtest.IPv4(client.Addr(), server.Addr(), labtest.ProtoUDP, 0, about))...)
		binary.BigEndian.PutUint16(message[2:], onesComplement(message))
		return labtest.IPv4(src, client.Addr(), 1, 0, message)
	}
	message := append([]byte{1, 4, 0, 0, 0, 0, 0, 0}, labtest.IPv6(client.Addr(), server.Addr(), labtest.ProtoUDP, about)...)
	pseudo := []byte{0, 0, byte(len(message) >> 8), byte(len(message)), 0, 0, 0, 58}
	binary.BigEndian.PutUint16(message[2:], onesComplement(src.AsSlice(), client.Addr().AsSlice(), pseudo, message))
	return labtest.IPv6(src, client.Addr(), 58, message)
}

// read waits for a datagram, or for an error about one.
func read(conn net.Conn) error {
	if err := conn.SetReadDeadline(time.Now().Add(labtest.ChangeTimeout)); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 100))
	return err
}

// TestForgedICMPErrors: an isolated pod sends ICMP errors about a connection of two other
// pods, with data for one of them. None is delivered, but errors of the server and of the
// router between the pods are.
func TestForgedICMPErrors(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/bad@1", "y/client@1", "z/server@1")
	forgeICMPErrors(t, c)
	client, server := c.Hosts["y/client"], c.Hosts["z/server"]
	if _, err := c.Nodes[0].Run(t.Context(), "", "ip", "link", "set", "pod3", "mtu", "1300"); err != nil {
		t.Fatal(err)
	}
	for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
		conn := openUDP(t, client, netip.AddrPortFrom(server.Addr(family), 80))
		waitFor(t, func() bool {
			_, err := conn.Write(make([]byte, 1400))
			return errors.Is(err, unix.EMSGSIZE)
		}, func() string { return "the router's packet too big does not arrive" })
	}
}

// TestForgedICMPErrorsOnABridge is TestForgedICMPErrors with a bridge between the pods.
func TestForgedICMPErrorsOnABridge(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/bad@1", "y/client@1", "z/server@1")
	labtest.BridgePods(t, c)
	forgeICMPErrors(t, c)
}

func forgeICMPErrors(t *testing.T, c *labtest.Cluster) {
	t.Helper()
	bad, client, server := c.Hosts["x/bad"], c.Hosts["y/client"], c.Hosts["z/server"]
	arrived, err := client.Capture(func(packet []byte) bool { return bytes.Contains(packet, secret) })
	if err != nil {
		t.Fatal(err)
	}
	send := func() (sent int) {
		t.Helper()
		for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
			to := netip.AddrPortFrom(server.Addr(family), 80)
			conn := openUDP(t, client, to)
			if _, err := conn.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			if err := read(conn); err != nil {
				t.Fatal(err)
			}
			from := netip.MustParseAddrPort(conn.LocalAddr().String())
			if err := bad.SendIP(unreachable(bad.Addr(family), from, to)); err != nil {
				t.Fatal(err)
			}
			sent++
		}
		return sent
	}
	want := send()
	waitFor(t, func() bool { return arrived.Count() == want }, func() string { return "without an agent the errors do not arrive" })

	agent := c.Start(t)[0]
	c.Enforce(t, agent, "x", isolateX)
	c.Enforce(t, agent, "z", labtest.Policy("z", "deny", `{podSelector: {}, policyTypes: [Egress]}`))
	c.Enforce(t, agent, "y", labtest.Policy("y", "deny", `{podSelector: {}, policyTypes: [Ingress]}`))
	c.Expect(t, labtest.No("x/bad", "y/client", "udp/80"), labtest.No("z/server", "y/client", "udp/80"), labtest.Yes("y/client", "z/server", "udp/80"))
	before := labtest.Denied(labtest.Metrics(t, agent))
	sent := float64(send())
	if got := labtest.Until(t, agent, before+sent, labtest.Denied) - before; got < sent {
		t.Errorf("%v packets were denied, want %v", got, sent)
	}
	if n := arrived.Count() - want; n != 0 {
		t.Errorf("%d errors about another pod's connection were delivered", n)
	}

	for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
		conn := openUDP(t, client, netip.AddrPortFrom(server.Addr(family), 9))
		if _, err := conn.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if err := read(conn); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("the server's own error: got %v, want that the connection was refused", err)
		}
	}
}
