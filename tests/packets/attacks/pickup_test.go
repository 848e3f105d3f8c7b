package attacks

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

const pickupPort = 9000

// Policies at either end that deny the connection of y/client to x/web.
var (
	ingressDenied = labtest.Policy("x", "denied", "{podSelector: {}, policyTypes: [Ingress]}")
	quarantined   = labtest.Policy("y", "denied", "{podSelector: {}, policyTypes: [Egress]}")
	unrelated     = labtest.Policy("z", "unrelated", "{podSelector: {}, policyTypes: [Ingress]}")
	// webMayConnect isolates the client, but lets x/web open connections to it.
	webMayConnect = labtest.Policy("y", "from-web", "{podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}]}]}")
)

// victim is a connection of y/client to x/web. Both ends continue whatever the kernel knows
// about it.
type victim struct {
	*labtest.Cluster
	agent          *lab.Agent
	family         lab.Family
	client, server *net.TCPConn
}

func (v *victim) port() uint16 { return uint16(v.client.LocalAddr().(*net.TCPAddr).Port) }

// reset makes the client send a packet that ends the connection's conntrack entry, with the
// next sequence number. The client's socket does not notice.
func (v *victim) reset(t *testing.T, ttl byte) {
	t.Helper()
	segment := labtest.TCPSYN(v.port())
	binary.BigEndian.PutUint16(segment[2:], pickupPort)
	binary.BigEndian.PutUint32(segment[4:], nextSequence(t, v.client))
	segment[13] = 0x04
	packet := packetBetween(v, "y/client", "x/web", labtest.ProtoTCP, segment)
	if v.family == lab.IPv4 {
		packet[8] = ttl
	} else {
		packet[7] = ttl
	}
	if err := v.Hosts["y/client"].SendIP(packet); err != nil {
		t.Fatal(err)
	}
}

// nextSequence returns the sequence number of the next byte that a socket sends.
func nextSequence(t *testing.T, conn *net.TCPConn) uint32 {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	const repairOn, repairOffWithoutProbe, sendQueue = 1, -1, 2
	var number int
	var result error
	err = raw.Control(func(fd uintptr) {
		for _, option := range [][2]int{{unix.TCP_REPAIR, repairOn}, {unix.TCP_REPAIR_QUEUE, sendQueue}} {
			if result = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, option[0], option[1]); result != nil {
				return
			}
		}
		if number, result = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ); result == nil {
			result = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, repairOffWithoutProbe)
		}
	})
	if err != nil || result != nil {
		t.Fatal(err, result)
	}
	return uint32(number)
}

// forget removes the conntrack entry at once. Otherwise the kernel does so ten seconds
// after a reset, when its table is full, or when a program flushes it.
func (v *victim) forget(t *testing.T) { labtest.ForgetConnections(t, v.Nodes[0]) }

// rememberBack opens connections from the server to the client's port until the kernel
// remembers that policies allow them. The client's socket refuses them.
func (v *victim) rememberBack(t *testing.T) {
	t.Helper()
	port := uint16(50000)
	if err := labtest.Within(t, func() bool {
		port++
		syn := labtest.TCPSYN(port)
		binary.BigEndian.PutUint16(syn[2:], v.port())
		if err := v.Hosts["x/web"].SendIP(packetBetween(v, "x/web", "y/client", labtest.ProtoTCP, syn)); err != nil {
			t.Fatal(err)
		}
		return labtest.Metrics(t, v.agent).Sum("netpol_remembered_verdicts", "verdict", "accept") > 0
	}); err != nil {
		t.Fatal("the class is not remembered")
	}
}

// say sends something from one end and expects it at the other.
func say(t *testing.T, from, to net.Conn) {
	t.Helper()
	if _, err := io.WriteString(from, "hello"); err != nil {
		t.Fatal(err)
	}
	to.SetReadDeadline(time.Now().Add(labtest.ChangeTimeout))
	if _, err := io.ReadFull(to, make([]byte, 5)); err != nil {
		t.Fatalf("nothing arrives: %v", err)
	}
}

// TestBlockedConnectionsStayBlocked: the conntrack entry of a denied connection ends while
// both ends continue. The kernel then picks up the connection in the middle, as if the end
// that sends first had opened it. Policies that allow connections from this end must not
// revive the denied connection.
func TestBlockedConnectionsStayBlocked(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/client@1")
	// Limit how long the kernel keeps entries of connections that were reset, ten seconds by
	// default.
	if err := c.Nodes[0].Set("netfilter/nf_conntrack_tcp_timeout_close", "1"); err != nil {
		t.Fatal(err)
	}
	agent := c.Start(t)[0]
	nothing := func(*testing.T, *victim) {}
	reset := func(t *testing.T, v *victim) { v.reset(t, 64) }
	forget := func(t *testing.T, v *victim) { v.forget(t) }
	for _, tc := range []struct {
		name            string
		before          string                    // allow the connection
		policies        string                    // deny the connection
		whileAllowed    func(*testing.T, *victim) // before they deny it
		whenItIsBlocked func(t *testing.T, v *victim)
		tracked         bool // while both ends continue
	}{
		{"a hidden reset, ingress denied", unrelated, ingressDenied, nothing, reset, false},
		{"a hidden reset, quarantine", unrelated, quarantined, nothing, reset, false},
		{"the entry is removed, ingress denied", unrelated, ingressDenied, nothing, forget, false},
		{"the entry is removed, quarantine", unrelated, quarantined, nothing, forget, false},
		{"the class of the other direction is remembered", webMayConnect, webMayConnect + ingressDenied, nothing, func(t *testing.T, v *victim) {
			v.rememberBack(t)
			v.forget(t)
		}, false},
		{"a reset on the way, before it is denied", unrelated, ingressDenied, pickUp, nothing, true},
		{"a reset on the way, before a quarantine", unrelated, quarantined, pickUp, nothing, true},
		{"picked up from either end", unrelated, quarantined, pickUp, forget, false},
	} {
		for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
			t.Run(tc.name+", "+family.String(), func(t *testing.T) {
				c.Enforce(t, agent, "policies", tc.before)
				v := openVictim(t, c, agent, family, pickupPort)
				tc.whileAllowed(t, v)
				blocked := func(m lab.Metrics) float64 { return m.Sum("netpol_conntrack_blocked_total") }
				already := blocked(labtest.Metrics(t, agent))
				c.Enforce(t, agent, "policies", tc.policies)
				if labtest.Until(t, agent, already+1, blocked) == already {
					t.Error("no connection was blocked")
				}
				tc.whenItIsBlocked(t, v)
				v.expectSilence(t, tc.tracked)
			})
		}
	}
}

// pickUp makes the kernel treat the connection as one opened by the server, which policies
// still allow.
func pickUp(t *testing.T, v *victim) {
	v.reset(t, 1)
	v.forget(t)
	say(t, v.server, v.client)
	say(t, v.client, v.server)
}

// openVictim opens a connection to a port of x/web.
func openVictim(t *testing.T, c *labtest.Cluster, agent *lab.Agent, family lab.Family, port uint16) *victim {
	t.Helper()
	at := netip.AddrPortFrom(c.Hosts["x/web"].Addr(family), port)
	listener, err := c.Hosts["x/web"].Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := c.Hosts["y/client"].Dial(t.Context(), lab.TCP, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	say(t, client, server)
	say(t, server, client)
	return &victim{c, agent, family, client.(*net.TCPConn), server.(*net.TCPConn)}
}

// expectSilence makes both ends send. The agent drops what the server sends; if the kernel
// still tracks the connection, the kernel drops it.
func (v *victim) expectSilence(t *testing.T, tracked bool) {
	t.Helper()
	word := []byte("what was denied")
	arrivals := func(host string) *lab.Capture {
		capture, err := v.Hosts[host].Capture(func(packet []byte) bool { return bytes.Contains(packet, word) })
		if err != nil {
			t.Fatal(err)
		}
		return capture
	}
	atClient, atServer := arrivals("y/client"), arrivals("x/web")
	dropped := func() float64 {
		return labtest.Metrics(t, v.agent).Sum("netpol_late_packets_total", "protocol", "TCP", "verdict", "drop")
	}
	before := dropped()
	send := func(conn net.Conn, isDropped func() bool) {
		if _, err := conn.Write(word); err != nil {
			t.Fatal(err)
		}
		if err := labtest.Within(t, func() bool { return atClient.Count() > 0 || atServer.Count() > 0 || isDropped() }); err != nil {
			t.Fatal("what was sent is neither delivered nor dropped")
		}
	}
	send(v.server, func() bool { return !tracked && dropped() > before || tracked && retransmitted(t, v.server) > 1 })
	send(v.client, func() bool { return retransmitted(t, v.client) > 1 })

	if atClient.Count() > 0 || atServer.Count() > 0 {
		t.Errorf("%d packets arrived at the client and %d at the server", atClient.Count(), atServer.Count())
	}
}

// TestAssociationsThatArePickedUp sends SCTP packets of an association whose beginning the
// kernel has not seen. They pass if policies allow both directions.
func TestAssociationsThatArePickedUp(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/client@1")
	agent := c.Start(t)[0]
	const init, heartbeat = 1, 4
	port := uint16(20000)
	for _, tc := range []struct {
		name, policies string
		chunk          byte
		passes         bool
	}{
		{"a heartbeat, allowed", unrelated, heartbeat, true},
		{"a heartbeat of a server that the client may not connect to", ingressDenied, heartbeat, false},
		{"a heartbeat to a client in quarantine", quarantined, heartbeat, false},
		{"the server begins", ingressDenied, init, true},
	} {
		c.Enforce(t, agent, "policies", tc.policies)
		for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
			t.Run(tc.name+", "+family.String(), func(t *testing.T) {
				port++
				v := &victim{Cluster: c, agent: agent, family: family}
				arrived, err := c.Hosts["y/client"].Capture(func(packet []byte) bool {
					return bytes.Contains(packet, binary.BigEndian.AppendUint16(nil, port)) && labtest.IsFrom(packet, c.Hosts["x/web"])
				})
				if err != nil {
					t.Fatal(err)
				}
				before := labtest.Metrics(t, agent)
				if err := c.Hosts["x/web"].SendIP(packetBetween(v, "x/web", "y/client", protoSCTP, sctp(port, tc.chunk))); err != nil {
					t.Fatal(err)
				}

				dropped := func(m lab.Metrics) float64 {
					return m.Sum("netpol_late_packets_total", "protocol", "SCTP", "verdict", "drop")
				}
				if err := labtest.Within(t, func() bool {
					return arrived.Count() > 0 || dropped(labtest.Metrics(t, agent)) > dropped(before)
				}); err != nil {
					t.Fatal("the packet is neither delivered nor counted")
				}
				if got := arrived.Count() > 0; got != tc.passes {
					t.Errorf("delivered: %v, want %v", got, tc.passes)
				}
			})
		}
	}
}

const protoSCTP = 132

// sctp returns an SCTP packet with one chunk, with its checksum.
func sctp(port uint16, chunk byte) []byte {
	const init = 1
	packet := binary.BigEndian.AppendUint16(nil, port)
	packet = binary.BigEndian.AppendUint16(packet, 40000)
	tag := uint32(7)
	body := []byte{chunk, 0, 0, 12, 0, 1, 0, 8, 0, 0, 0, 0} // of a heartbeat
	if chunk == init {
		tag = 0
		body = []byte{chunk, 0, 0, 20, 0, 0, 0, 9, 0, 0, 16, 0, 0, 1, 0, 1, 0, 0, 0, 1}
	}
	packet = binary.BigEndian.AppendUint32(packet, tag)
	packet = append(append(packet, 0, 0, 0, 0), body...)
	binary.LittleEndian.PutUint32(packet[8:], crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli)))
	return packet
}

// packetBetween returns a packet from one host to another.
func packetBetween(v *victim, from, to string, proto byte, payload []byte) []byte {
	src, dst := v.Hosts[from].Addr(v.family), v.Hosts[to].Addr(v.family)
	if proto == labtest.ProtoTCP {
		pseudo := []byte{0, 0, 0, byte(len(payload)), 0, 0, 0, proto}
		binary.BigEndian.PutUint16(payload[16:], onesComplement(src.AsSlice(), dst.AsSlice(), pseudo, payload))
	}
	if v.family == lab.IPv4 {
		return labtest.IPv4(src, dst, proto, 0, payload)
	}
	return labtest.IPv6(src, dst, proto, payload)
}
