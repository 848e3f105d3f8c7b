package attacks

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// helpers assigns helpers of connection tracking by port. A connection to port 22 expects one from
// its server to its client, like those of protocols that are not tried here.
const helpers = `
table inet helpers {
	ct helper ftp { type "ftp" protocol tcp; }
	ct helper irc { type "irc" protocol tcp; }
	ct helper tftp { type "tftp" protocol udp; }
	ct helper amanda { type "amanda" protocol udp; }
	ct expectation any4 { protocol tcp; dport 5001; timeout 1h; size 1; l3proto ip; }
	ct expectation any6 { protocol tcp; dport 5001; timeout 1h; size 1; l3proto ip6; }
	chain prerouting {
		type filter hook prerouting priority filter
		tcp dport 21 ct helper set "ftp"
		tcp dport 6667 ct helper set "irc"
		udp dport 69 ct helper set "tftp"
		udp dport 10080 ct helper set "amanda"
		meta nfproto ipv4 tcp dport 22 ct expectation set "any4"
		meta nfproto ipv6 tcp dport 22 ct expectation set "any6"
	}
}
`

// dataPort and otherPort are the ports of connections that are expected.
const dataPort, otherPort = 5000, 5001

// controlPorts are the ports that policies allow.
const controlPorts = "{port: 21}, {port: 22}, {port: 6667}, {port: 69, protocol: UDP}, {port: 10080, protocol: UDP}"

var (
	onlyControl = labtest.Policy("x", "control", "{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{ports: ["+controlPorts+"]}]}") +
		labtest.Policy("y", "control", "{podSelector: {}, policyTypes: [Ingress, Egress], egress: [{ports: ["+controlPorts+"]}]}")
	openToAll = labtest.Policy("x", "control", "{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}") +
		labtest.Policy("y", "control", "{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}")
	dataDeniedByAdmin = openToAll + labtest.Admin("data", `ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {protocol: TCP, port: 5000}}]}],
    egress: [{action: Deny, to: [{namespaces: {}}], ports: [{portRange: {protocol: TCP, start: 5000, end: 5001}}, {portNumber: {protocol: UDP, port: 6900}}]}]`)
)

// expecting is a control connection of y/client to x/web whose helper expects another connection.
type expecting struct {
	name     string
	data     uint16             // the port of the expected connection
	answers  bool               // the server opens it
	datagram bool               // the expected connection is UDP to the client's port
	expect   func(t *testing.T) // makes the ends say which one
}

// TestHelpersOpenNothing: connection tracking on the node parses protocols whose ends tell each
// other ports, so the kernel expects connections to these. They get the mark of the control
// connection, which the agent has accepted. They pass only if policies allow the port, also after
// a restart of the agent, and end when policies no longer do.
func TestHelpersOpenNothing(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/client@1")
	if out, err := c.Nodes[0].Run(t.Context(), helpers, "nft", "-f", "-"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	agent := c.Start(t, labtest.WithAdmin)[0]
	if got := labtest.Metrics(t, agent).Sum("netpol_node_problems", "cause", "helper"); got == 0 {
		t.Error("no helper is reported")
	}
	enforce := func(policies string) func() {
		return func() { c.Enforce(t, agent, "policies", policies) }
	}
	restart := func() {
		if err := agent.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		agent = c.Start(t, labtest.WithAdmin)[0]
	}
	enforce(onlyControl)()
	for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
		t.Run(family.String(), func(t *testing.T) {
			controls := openControls(t, c, agent, family)
			isDecided(t, c, c.Hosts["y/client"].Addr(family))
			for _, step := range []struct {
				name   string
				before func()
				passes bool
			}{
				{"isolated", func() {}, false},
				{"after a restart", restart, false},
				{"denied by an administrator", enforce(dataDeniedByAdmin), false},
				{"allowed", enforce(openToAll), true},
				{"isolated again", enforce(onlyControl), false},
			} {
				step.before()
				for _, control := range controls {
					t.Run(step.name+", "+control.name, func(t *testing.T) { control.try(t, c, agent, family, step.passes) })
				}
			}
		})
	}
}

// isDecided checks that the connections of an address have the agent's mark.
func isDecided(t *testing.T, c *labtest.Cluster, of netip.Addr) {
	t.Helper()
	family := map[bool]string{true: "ipv4", false: "ipv6"}[of.Is4()]
	list, err := c.Nodes[0].Run(t.Context(), "", "conntrack", "-L", "-f", family, "-s", of.String())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(list) {
		if strings.Contains(line, "dport=") && !strings.Contains(line, "mark=4096") {
			t.Errorf("the agent has not accepted %s", line)
		}
	}
}

// try opens the expected connection.
func (e expecting) try(t *testing.T, c *labtest.Cluster, agent *lab.Agent, family lab.Family, passes bool) {
	t.Helper()
	copied := func() float64 { return labtest.Metrics(t, agent).Sum("netpol_copied_marks_total") }
	before := copied()
	e.expect(t)
	within := labtest.Silence
	if passes {
		within = labtest.ChangeTimeout
	}
	var passed bool
	if e.datagram {
		passed = datagramPasses(t, c, family, within)
	} else {
		passed = e.connects(t, c, family, within)
	}
	if passed != passes {
		t.Errorf("the expected connection passes: %v, want %v", passed, passes)
	}
	if copied() == before {
		t.Error("the connection was not expected, or had no mark")
	}
}

func (e expecting) connects(t *testing.T, c *labtest.Cluster, family lab.Family, within time.Duration) bool {
	t.Helper()
	from, to := c.Hosts["y/client"], c.Hosts["x/web"]
	if e.answers {
		from, to = to, from
	}
	at := netip.AddrPortFrom(to.Addr(family), e.data)
	listener, err := to.Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	conn, err := from.Dial(ctx, lab.TCP, at)
	if err != nil {
		return false
	}
	defer conn.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	say(t, conn, server)
	say(t, server, conn)
	return true
}

// tftpClient is the port of the client of TFTP, to which the server answers from another one.
const tftpClient = 6900

// datagramPasses reports whether the client gets what the server sends from a new port.
func datagramPasses(t *testing.T, c *labtest.Cluster, family lab.Family, within time.Duration) bool {
	t.Helper()
	arrived, err := c.Hosts["y/client"].Capture(func(packet []byte) bool {
		return labtest.IsFrom(packet, c.Hosts["x/web"]) && strings.Contains(string(packet), "content")
	})
	if err != nil {
		t.Fatal(err)
	}
	server, err := c.Hosts["x/web"].ListenPacket(netip.AddrPortFrom(c.Hosts["x/web"].Addr(family), 0))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, err := server.WriteToUDPAddrPort([]byte("\x00\x03\x00\x01content"), netip.AddrPortFrom(c.Hosts["y/client"].Addr(family), tftpClient)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return lab.Poll(ctx, func() (bool, error) { return arrived.Count() > 0, nil }) == nil
}

// openControls opens a control connection for each helper.
func openControls(t *testing.T, c *labtest.Cluster, agent *lab.Agent, family lab.Family) []expecting {
	t.Helper()
	ftp, irc := openVictim(t, c, agent, family, 21), openVictim(t, c, agent, family, 6667)
	web, client := c.Hosts["x/web"].Addr(family), c.Hosts["y/client"].Addr(family)
	bytes := func(a netip.Addr) string { return strings.ReplaceAll(a.String(), ".", ",") }
	tftp := openDatagrams(t, c, family, 69, tftpClient)
	amanda := openDatagrams(t, c, family, 10080, 10081)
	all := []expecting{
		{name: "FTP, EPSV", data: dataPort, expect: func(t *testing.T) {
			tell(t, ftp.client, ftp.server, "EPSV\r\n")
			tell(t, ftp.server, ftp.client, fmt.Sprintf("229 Entering Extended Passive Mode (|||%d|)\r\n", dataPort))
		}},
		{name: "FTP, EPRT", data: dataPort, answers: true, expect: func(t *testing.T) {
			number := map[lab.Family]int{lab.IPv4: 1, lab.IPv6: 2}[family]
			tell(t, ftp.client, ftp.server, fmt.Sprintf("EPRT |%d|%s|%d|\r\n", number, client, dataPort))
		}},
		{name: "TFTP", datagram: true, expect: func(t *testing.T) {
			tftp.ask(t, "\x00\x01file\x00octet\x00")
		}},
		{name: "Amanda", data: dataPort, expect: func(t *testing.T) {
			amanda.answer(t, amanda.ask(t, "backup"), fmt.Sprintf("CONNECT DATA %d MESG %d INDEX %d\n", dataPort, dataPort+1, dataPort+2))
		}},
		{name: "any other", data: otherPort, answers: true, expect: func(t *testing.T) { openVictim(t, c, agent, family, 22) }},
	}
	if family == lab.IPv4 {
		all = append(all, expecting{name: "FTP, PASV", data: dataPort, expect: func(t *testing.T) {
			tell(t, ftp.client, ftp.server, "PASV\r\n")
			tell(t, ftp.server, ftp.client, fmt.Sprintf("227 Entering Passive Mode (%s,%d,%d).\r\n", bytes(web), dataPort>>8, dataPort&0xff))
		}}, expecting{name: "IRC, DCC", data: dataPort, answers: true, expect: func(t *testing.T) {
			ip := client.As4()
			tell(t, irc.client, irc.server, fmt.Sprintf("PRIVMSG you :\x01DCC SEND file %d %d\x01\r\n", binary.BigEndian.Uint32(ip[:]), dataPort))
		}})
	}
	// The helper of FTP parses only lines after the first.
	tell(t, ftp.client, ftp.server, "NOOP\r\n")
	tell(t, ftp.server, ftp.client, "200 OK\r\n")
	return all
}

// tell sends a line from one end to the other.
func tell(t *testing.T, from, to net.Conn, line string) {
	t.Helper()
	if _, err := io.WriteString(from, line); err != nil {
		t.Fatal(err)
	}
	to.SetReadDeadline(time.Now().Add(labtest.ChangeTimeout))
	if _, err := io.ReadFull(to, make([]byte, len(line))); err != nil {
		t.Fatalf("%q does not arrive: %v", line, err)
	}
}

// datagrams are the two ends of a control connection by UDP.
type datagrams struct {
	client, server *net.UDPConn
	at             netip.AddrPort
}

func openDatagrams(t *testing.T, c *labtest.Cluster, family lab.Family, port, clientPort uint16) datagrams {
	t.Helper()
	at := netip.AddrPortFrom(c.Hosts["x/web"].Addr(family), port)
	server, err := c.Hosts["x/web"].ListenPacket(at)
	if err != nil {
		t.Fatal(err)
	}
	client, err := c.Hosts["y/client"].ListenPacket(netip.AddrPortFrom(c.Hosts["y/client"].Addr(family), clientPort))
	if err != nil {
		t.Fatal(err)
	}
	d := datagrams{client, server, at}
	t.Cleanup(func() { client.Close(); server.Close() })
	d.ask(t, "hello")
	return d
}

// ask sends a datagram to the server, and returns its source.
func (d datagrams) ask(t *testing.T, text string) netip.AddrPort {
	t.Helper()
	if _, err := d.client.WriteToUDPAddrPort([]byte(text), d.at); err != nil {
		t.Fatal(err)
	}
	return awaitDatagram(t, d.server, text)
}

func (d datagrams) answer(t *testing.T, to netip.AddrPort, text string) {
	t.Helper()
	if _, err := d.server.WriteToUDPAddrPort([]byte(text), to); err != nil {
		t.Fatal(err)
	}
	awaitDatagram(t, d.client, text)
}

// awaitDatagram waits for a datagram with this text.
func awaitDatagram(t *testing.T, conn *net.UDPConn, want string) netip.AddrPort {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(labtest.ChangeTimeout))
	buffer := make([]byte, 512)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			t.Fatalf("%q does not arrive: %v", want, err)
		}
		if string(buffer[:n]) == want {
			return from
		}
	}
}
