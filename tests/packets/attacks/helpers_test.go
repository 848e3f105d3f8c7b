package attacks

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// TestHelpersOpenNothing: connection tracking on the node parses FTP. A server tells its
// client to connect to another port, so the kernel expects that connection. It passes only
// if policies allow the port, and ends when they no longer do.
func TestHelpersOpenNothing(t *testing.T) {
	const data = 5000
	c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/client@1")
	if _, err := c.Nodes[0].Run(t.Context(), `
table inet helpers {
	ct helper ftp {
		type "ftp" protocol tcp
	}
	chain prerouting {
		type filter hook prerouting priority filter
		tcp dport 21 ct helper set "ftp"
	}
}
`, "nft", "-f", "-"); err != nil {
		t.Skipf("the kernel has no helper for FTP: %v", err)
	}
	agent := c.Start(t)[0]
	if got := labtest.Metrics(t, agent).Sum("netpol_node_problems", "cause", "helper"); got != 1 {
		t.Errorf("%v helpers are reported, want 1", got)
	}
	only := func(ports string) string {
		return labtest.Policy("x", "ftp", "{podSelector: {}, policyTypes: [Ingress], ingress: [{ports: ["+ports+"]}]}")
	}
	web := c.Hosts["x/web"]
	for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
		t.Run(family.String(), func(t *testing.T) {
			c.Enforce(t, agent, "policies", unrelated)
			control := openVictim(t, c, agent, family, 21)
			listener, err := web.Listen(netip.AddrPortFrom(web.Addr(family), data))
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			passive(t, control, data) // the helper parses only lines after the first
			passive(t, control, data)
			c.Enforce(t, agent, "policies", only("{port: 21}"))
			to := netip.AddrPortFrom(web.Addr(family), data)
			if conn, err := dialFor(t, c, to, labtest.Silence); err == nil {
				conn.Close()
				t.Errorf("the client connects to port %d, which policies deny", data)
			}

			passive(t, control, data)
			c.Enforce(t, agent, "policies", only(fmt.Sprintf("{port: 21}, {port: %d}", data)))
			conn, err := dialFor(t, c, to, labtest.ChangeTimeout)
			if err != nil {
				t.Fatalf("the client does not connect to port %d, which policies allow: %v", data, err)
			}
			defer conn.Close()
			server, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			say(t, conn, server)
			blocked := func(m lab.Metrics) float64 { return m.Sum("netpol_conntrack_blocked_total") }
			already := blocked(labtest.Metrics(t, agent))
			c.Enforce(t, agent, "policies", only("{port: 21}"))
			if labtest.Until(t, agent, already+1, blocked) == already {
				t.Error("the connection for data goes on after it is denied")
			}
			say(t, control.client, control.server)
		})
	}
}

// passive makes the FTP client ask for a port and the server name one.
func passive(t *testing.T, v *victim, port int) {
	t.Helper()
	command, answer := "EPSV\r\n", fmt.Sprintf("229 Entering Extended Passive Mode (|||%d|)\r\n", port)
	if v.family == lab.IPv4 {
		a := v.Hosts["x/web"].Addr(lab.IPv4).As4()
		command, answer = "PASV\r\n", fmt.Sprintf("227 Entering Passive Mode (%d,%d,%d,%d,%d,%d).\r\n", a[0], a[1], a[2], a[3], port>>8, port&0xff)
	}
	for _, line := range []struct {
		from, to net.Conn
		text     string
	}{{v.client, v.server, command}, {v.server, v.client, answer}} {
		if _, err := io.WriteString(line.from, line.text); err != nil {
			t.Fatal(err)
		}
		line.to.SetReadDeadline(time.Now().Add(labtest.ChangeTimeout))
		if _, err := io.ReadFull(line.to, make([]byte, len(line.text))); err != nil {
			t.Fatal(err)
		}
	}
}

// dialFor opens a connection from y/client within a time limit.
func dialFor(t *testing.T, c *labtest.Cluster, to netip.AddrPort, within time.Duration) (net.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return c.Hosts["y/client"].Dial(ctx, lab.TCP, to)
}
