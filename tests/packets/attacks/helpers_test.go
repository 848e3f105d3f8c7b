package attacks

import (
	"bytes"
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

// helpers assigns by port all helpers that Linux has, except those of NetBIOS and SNMP, which expect only
// answers to broadcasts of the node's own sockets: no pod has a decided control connection for these. A
// connection to port 22 expects one from its server to its client, like those of any other program.
const helpers = `
table inet helpers {
	ct helper ftp { type "ftp" protocol tcp; }
	ct helper irc { type "irc" protocol tcp; }
	ct helper tftp { type "tftp" protocol udp; }
	ct helper amanda { type "amanda" protocol udp; }
	ct helper sane { type "sane" protocol tcp; }
	ct helper sip { type "sip" protocol udp; }
	ct helper ras { type "RAS" protocol udp; }
	ct helper q931 { type "Q.931" protocol tcp; }
	ct helper pptp { type "pptp" protocol tcp; }
	ct expectation any4 { protocol tcp; dport 5001; timeout 1h; size 1; l3proto ip; }
	ct expectation any6 { protocol tcp; dport 5001; timeout 1h; size 1; l3proto ip6; }
	chain prerouting {
		type filter hook prerouting priority filter
		tcp dport 21 ct helper set "ftp"
		tcp dport 6667 ct helper set "irc"
		udp dport 69 ct helper set "tftp"
		udp dport 10080 ct helper set "amanda"
		tcp dport 6566 ct helper set "sane"
		udp dport 5060 ct helper set "sip"
		udp dport 1719 ct helper set "ras"
		tcp dport 1720 ct helper set "q931"
		meta nfproto ipv4 tcp dport 1723 ct helper set "pptp"
		meta nfproto ipv4 tcp dport 22 ct expectation set "any4"
		meta nfproto ipv6 tcp dport 22 ct expectation set "any6"
	}
}
`

// dataPort and otherPort are the ports of connections that are expected.
const dataPort, otherPort = 5000, 5001

// controlPorts are the ports that policies allow.
const controlPorts = "{port: 21}, {port: 22}, {port: 1720}, {port: 1723}, {port: 6566}, {port: 6667}, " +
	"{port: 69, protocol: UDP}, {port: 1719, protocol: UDP}, {port: 5060, protocol: UDP}, {port: 10080, protocol: UDP}"

var (
	onlyControl = labtest.Policy("x", "control", "{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{ports: ["+controlPorts+"]}]}") +
		labtest.Policy("y", "control", "{podSelector: {}, policyTypes: [Ingress, Egress], egress: [{ports: ["+controlPorts+"]}]}")
	openToAll = labtest.Policy("x", "control", "{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}") +
		labtest.Policy("y", "control", "{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}")
	dataDeniedByAdmin = openToAll + labtest.Admin("data", `ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {protocol: TCP, port: 5000}}, {portNumber: {protocol: UDP, port: 5000}}]}],
    egress: [{action: Deny, to: [{namespaces: {}}], ports: [{portRange: {protocol: TCP, start: 5000, end: 5001}}, {portRange: {protocol: UDP, start: 5000, end: 6900}}]}]`)
)

// expecting is a control connection of y/client to x/web whose helper expects another connection.
type expecting struct {
	name    string
	data    uint16             // the port of the expected connection
	answers bool               // the server opens it
	expect  func(t *testing.T) // makes the ends say which one
	// payload returns the next packet of the connection from a port, without its IP header. If it is nil,
	// the connection is TCP.
	proto   byte
	payload func(port uint16) []byte
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
					// An administrator's rule cannot name GRE without the control connection.
					passes := step.passes || control.proto == protoGRE && strings.Contains(step.name, "administrator")
					t.Run(step.name+", "+control.name, func(t *testing.T) { control.try(t, c, agent, family, passes) })
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
	passed := false
	if e.payload != nil {
		passed = e.arrives(t, c, family, within)
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

// ends returns the ends of the expected connection.
func (e expecting) ends(c *labtest.Cluster) (from, to *lab.Host) {
	if e.answers {
		return c.Hosts["x/web"], c.Hosts["y/client"]
	}
	return c.Hosts["y/client"], c.Hosts["x/web"]
}

func (e expecting) connects(t *testing.T, c *labtest.Cluster, family lab.Family, within time.Duration) bool {
	t.Helper()
	from, to := e.ends(c)
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

// firstPort is the source port of the next connection that is expected.
var firstPort uint16 = 30000

// arrives reports whether a packet of a new connection arrives.
func (e expecting) arrives(t *testing.T, c *labtest.Cluster, family lab.Family, within time.Duration) bool {
	t.Helper()
	from, to := e.ends(c)
	firstPort++
	payload := e.payload(firstPort)
	arrived, err := to.Capture(func(packet []byte) bool {
		return labtest.IsFrom(packet, from) && bytes.HasSuffix(packet, payload)
	})
	if err != nil {
		t.Fatal(err)
	}
	src, dst := from.Addr(family), to.Addr(family)
	packet := labtest.IPv4(src, dst, e.proto, 0, payload)
	if family == lab.IPv6 {
		packet = labtest.IPv6(src, dst, e.proto, payload)
	}
	if err := from.SendIP(packet); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return lab.Poll(ctx, func() (bool, error) { return arrived.Count() > 0, nil }) == nil
}

// tftpClient is the port of the client of TFTP, to which the server answers from another one.
const tftpClient = 6900

// openControls opens a control connection for each helper.
func openControls(t *testing.T, c *labtest.Cluster, agent *lab.Agent, family lab.Family) []expecting {
	t.Helper()
	web, client := c.Hosts["x/web"].Addr(family), c.Hosts["y/client"].Addr(family)
	ftp, irc, sane, q931 := openVictim(t, c, agent, family, 21), openVictim(t, c, agent, family, 6667), openVictim(t, c, agent, family, 6566), openVictim(t, c, agent, family, 1720)
	tftp, amanda := openDatagrams(t, c, family, 69, tftpClient), openDatagrams(t, c, family, 10080, 10081)
	sip, ras := openDatagrams(t, c, family, 5060, 5061), openDatagrams(t, c, family, 1719, 1718)
	udp := func(payload string) func(uint16) []byte {
		return func(port uint16) []byte { return labtest.UDP(port, dataPort, []byte(payload)) }
	}
	all := []expecting{
		{name: "FTP, EPSV", data: dataPort, expect: func(t *testing.T) {
			tell(t, ftp.client, ftp.server, "EPSV\r\n")
			tell(t, ftp.server, ftp.client, fmt.Sprintf("229 Entering Extended Passive Mode (|||%d|)\r\n", dataPort))
		}},
		{name: "FTP, EPRT", data: dataPort, answers: true, expect: func(t *testing.T) {
			number := map[lab.Family]int{lab.IPv4: 1, lab.IPv6: 2}[family]
			tell(t, ftp.client, ftp.server, fmt.Sprintf("EPRT |%d|%s|%d|\r\n", number, client, dataPort))
		}},
		{name: "TFTP", answers: true, proto: labtest.ProtoUDP, payload: func(port uint16) []byte {
			return labtest.UDP(port, tftpClient, []byte("\x00\x03\x00\x01content"))
		}, expect: func(t *testing.T) { tftp.ask(t, "\x00\x01file\x00octet\x00") }},
		{name: "Amanda", data: dataPort, expect: func(t *testing.T) {
			amanda.answer(t, amanda.ask(t, "backup"), fmt.Sprintf("CONNECT DATA %d MESG %d INDEX %d\n", dataPort, dataPort+1, dataPort+2))
		}},
		{name: "SANE", data: dataPort, expect: func(t *testing.T) {
			tell(t, sane.client, sane.server, saneStart)
			tell(t, sane.server, sane.client, saneStarted(dataPort))
		}},
		{name: "SIP, RTP", answers: true, proto: labtest.ProtoUDP, payload: udp("voice"), expect: func(t *testing.T) { sip.ask(t, sipInvite(client, dataPort)) }},
		{name: "H.323, RAS", proto: labtest.ProtoUDP, payload: udp("register"), expect: func(t *testing.T) {
			ras.answer(t, ras.ask(t, "who"), rasConfirm(netip.AddrPortFrom(web, dataPort)))
		}},
		{name: "H.323, Q.931", data: dataPort, expect: func(t *testing.T) {
			tell(t, q931.server, q931.client, q931Forward(netip.AddrPortFrom(web, dataPort)))
		}},
		{name: "any other", data: otherPort, answers: true, expect: func(t *testing.T) { openVictim(t, c, agent, family, 22) }},
	}
	if family == lab.IPv4 { // these helpers do not know IPv6
		pptp := openVictim(t, c, agent, family, 1723)
		call := uint16(0)
		all = append(all, expecting{name: "FTP, PASV", data: dataPort, expect: func(t *testing.T) {
			tell(t, ftp.client, ftp.server, "PASV\r\n")
			tell(t, ftp.server, ftp.client, fmt.Sprintf("227 Entering Passive Mode (%s,%d,%d).\r\n", strings.ReplaceAll(web.String(), ".", ","), dataPort>>8, dataPort&0xff))
		}}, expecting{name: "IRC, DCC", data: dataPort, answers: true, expect: func(t *testing.T) {
			ip := client.As4()
			tell(t, irc.client, irc.server, fmt.Sprintf("PRIVMSG you :\x01DCC SEND file %d %d\x01\r\n", binary.BigEndian.Uint32(ip[:]), dataPort))
		}}, expecting{name: "PPTP", proto: protoGRE, payload: func(uint16) []byte { return pptpData(call) }, expect: func(t *testing.T) {
			call++
			tell(t, pptp.server, pptp.client, pptpMessage(13)) // ends the call before
			tell(t, pptp.client, pptp.server, pptpMessage(1, 1, 0))
			tell(t, pptp.server, pptp.client, pptpMessage(2, 1, 0x0100))
			tell(t, pptp.client, pptp.server, pptpMessage(7, call, 0))
			tell(t, pptp.server, pptp.client, pptpMessage(8, call, call, 0x0100))
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
