package netns

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// servesDB allows y/db to connect to x/web, which may not open connections itself.
var servesDB = labtest.Policy("x", "web", `
  podSelector: {}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}]}]`)

// late returns how many late packets of a protocol an agent has counted.
func late(protocol, verdict string) func(lab.Metrics) float64 {
	return func(m lab.Metrics) float64 {
		return m.Sum("netpol_late_packets_total", "protocol", protocol, "verdict", verdict)
	}
}

// awaitLate waits until one more late packet is counted than before.
func awaitLate(t *testing.T, agent *lab.Agent, before lab.Metrics, protocol, verdict string) {
	t.Helper()
	count := late(protocol, verdict)
	if got := labtest.Until(t, agent, count(before)+1, count); got == count(before) {
		t.Errorf("no late packet of %s is counted with verdict %s", protocol, verdict)
	}
}

// tcpHeader returns a TCP header with flags.
func tcpHeader(src, dst uint16, flags byte) []byte {
	header := labtest.TCPSYN(src)
	binary.BigEndian.PutUint16(header[2:], dst)
	header[13] = flags
	return header
}

// ip returns a packet from one host to the other.
func ip(family lab.Family, from, to *lab.Host, proto byte, payload []byte) []byte {
	if family == lab.IPv4 {
		return labtest.IPv4(from.Addr(family), to.Addr(family), proto, 0, payload)
	}
	return labtest.IPv6(from.Addr(family), to.Addr(family), proto, payload)
}

// TestLatePackets: the kernel forgets connections that policies allow while both ends
// continue. What the server sends is denied, because it might open a connection, but does
// not count as an attempt to connect.
func TestLatePackets(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db")
	socket := t.TempDir() + "/probe"
	agent := c.Start(t, "--probe-socket="+socket, "--log-denied")[0]
	web, db, node := c.Hosts["x/web"], c.Hosts["y/db"], c.Nodes[0]
	c.Enforce(t, agent, "policies", servesDB)
	listener := listenOn(t, web, pairPort)
	for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
		t.Run("TCP of "+family.String(), func(t *testing.T) {
			p := c.openPair(t, "y/db", listener, netip.AddrPortFrom(web.Addr(family), pairPort))
			p.send(t, "first")
			p.received(t, "first", labtest.ChangeTimeout)
			labtest.ForgetConnections(t, node)
			before := labtest.Metrics(t, agent)
			if _, err := p.server.Write([]byte("again")); err != nil {
				t.Fatal(err)
			}
			awaitLate(t, agent, before, "TCP", "drop")
		})
		t.Run("UDP of "+family.String(), func(t *testing.T) {
			from, to := netip.AddrPortFrom(db.Addr(family), 40000), netip.AddrPortFrom(web.Addr(family), sinkPort)
			server, err := web.ListenPacket(to)
			if err != nil {
				t.Fatal(err)
			}
			client, err := db.ListenPacket(from)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.WriteToUDPAddrPort([]byte("query"), to); err != nil {
				t.Fatal(err)
			}
			server.SetReadDeadline(time.Now().Add(labtest.ChangeTimeout))
			if _, _, err := server.ReadFromUDPAddrPort(make([]byte, 16)); err != nil {
				t.Fatal(err)
			}
			labtest.ForgetConnections(t, node)
			before := labtest.Metrics(t, agent)
			if _, err := server.WriteToUDPAddrPort([]byte("answer"), from); err != nil {
				t.Fatal(err)
			}
			awaitLate(t, agent, before, "UDP", "drop")
		})
		const fin, syn, rst, ack = 0x01, 0x02, 0x04, 0x10
		for name, flags := range map[string]byte{"RST": rst, "RST and ACK": rst | ack, "FIN and ACK": fin | ack, "SYN and ACK": syn | ack} {
			t.Run(name+" of "+family.String(), func(t *testing.T) {
				before := labtest.Metrics(t, agent)
				if err := web.SendIP(ip(family, web, db, labtest.ProtoTCP, tcpHeader(pairPort, 41000, flags))); err != nil {
					t.Fatal(err)
				}
				awaitLate(t, agent, before, "TCP", "drop")
			})
		}
	}
	labtest.AwaitVerdicts(t, agent)
	expectAttempts(t, agent, node, socket, 0)

	// In contrast, a SYN of the server is an attempt.
	if err := web.SendIP(ip(lab.IPv4, web, db, labtest.ProtoTCP, labtest.TCPSYN(42000))); err != nil {
		t.Fatal(err)
	}
	labtest.WaitLog(t, agent, "Packet denied")
	labtest.AwaitVerdicts(t, agent)
	expectAttempts(t, agent, node, socket, 1)
}

// expectAttempts expects this number of attempts by the server in metrics, records and the
// log, and that the kernel remembers no denial.
func expectAttempts(t *testing.T, agent *lab.Agent, node *lab.Node, socket string, want int) {
	t.Helper()
	m := labtest.Metrics(t, agent)
	if got := m.Sum("netpol_decisions_total", "verdict", "deny"); got != float64(want) {
		t.Errorf("%v denials are counted, want %d", got, want)
	}
	if got := m.Sum("netpol_remembered_verdicts", "verdict", "drop"); got != 0 {
		t.Errorf("%v denied classes are remembered", got)
	}
	if got := strings.Count(agent.Log(), "Packet denied"); got != want {
		t.Errorf("%d packets are logged as denied, want %d", got, want)
	}
	output, err := node.Run(t.Context(), "", labtest.AgentBinary, "flows", "--probe-socket", socket)
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	var tried []string
	if err := flows.Decode(strings.NewReader(output), func(r *flows.Record) error {
		if r.Type == flows.TypeFlow && r.Source.Pod == "web" {
			tried = append(tried, fmt.Sprintf("%s %d %s", r.Protocol, r.Port, r.Verdict))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}

	if len(tried) != want {
		t.Errorf("the flows of the server are %q, want %d", tried, want)
	}
}
