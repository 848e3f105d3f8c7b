package netns

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// flowPort is where x/web receives UDP.
const flowPort = 9002

// needFlowtables skips the test if the kernel has no flowtables, unless KERNEL_REQUIRED is
// set.
func needFlowtables(t *testing.T, node *lab.Node) {
	t.Helper()
	const probe = "add table inet probe; add flowtable inet probe lo { hook ingress priority 0; devices = { lo }; }; delete table inet probe"
	_, err := node.Run(t.Context(), probe, "nft", "-f", "-")
	switch {
	case err == nil:
	case os.Getenv("KERNEL_REQUIRED") == "" && (strings.Contains(err.Error(), "No such file or directory") || strings.Contains(err.Error(), "not supported")):
		t.Skip("the kernel has no flowtables")
	default:
		t.Fatal(err)
	}
}

// flowtable makes a node forward TCP and UDP through a flowtable of all its interfaces, and
// counts what passes the forward hook.
func flowtable(t *testing.T, node *lab.Node) {
	t.Helper()
	links, err := node.Run(t.Context(), "", "ip", "-o", "link")
	if err != nil {
		t.Fatal(err)
	}
	var devices []string
	for line := range strings.Lines(links) {
		name, _, _ := strings.Cut(strings.Fields(line)[1], "@")
		if name = strings.TrimSuffix(name, ":"); name != "lo" {
			devices = append(devices, name)
		}
	}
	rules := fmt.Sprintf(`
table inet fastpath {
	counter forwarded { }
	flowtable pods {
		hook ingress priority filter
		devices = { %s }
	}
	chain forward {
		type filter hook forward priority filter
		meta l4proto { tcp, udp } counter name forwarded
		meta l4proto { tcp, udp } flow add @pods
	}
}
`, strings.Join(devices, ", "))
	if _, err := node.Run(t.Context(), rules, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// forwarded returns how many packets have passed the forward hook.
func forwarded(t *testing.T, node *lab.Node) string {
	t.Helper()
	text, err := node.Run(t.Context(), "", "nft", "list", "counter", "inet", "fastpath", "forwarded")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// answering is the server's end of a UDP flow. It sends to the client that it heard last.
type answering struct {
	*net.UDPConn
	client netip.AddrPort
}

func (a *answering) Read(b []byte) (n int, err error) {
	n, a.client, err = a.ReadFromUDPAddrPort(b)
	return n, err
}

func (a *answering) Write(b []byte) (int, error) { return a.WriteToUDPAddrPort(b, a.client) }

// openFlow opens a UDP flow from a host to a pod.
func (c *cluster) openFlow(t *testing.T, from, to string, addr netip.Addr) pair {
	t.Helper()
	conn, err := c.Hosts[to].ListenPacket(netip.AddrPortFrom(addr, flowPort))
	if err != nil {
		t.Fatal(err)
	}
	client, err := c.Hosts[from].Dial(t.Context(), lab.UDP, netip.AddrPortFrom(addr, flowPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	p := pair{fmt.Sprintf("UDP %s to %s", from, addr), client, &answering{UDPConn: conn}}
	if _, err := io.WriteString(client, "begin"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("begin"))
	if _, err := io.ReadFull(p.server, got); err != nil {
		t.Fatal(err)
	}
	return p
}

// exchange expects that data passes on all connections in both directions.
func exchange(t *testing.T, pairs []pair, word string) {
	t.Helper()
	each(pairs, func(p pair) {
		p.send(t, word)
		p.received(t, word, labtest.ChangeTimeout)
	})
}

// offload exchanges data until no packet of the connections passes a hook.
func (c *cluster) offload(t *testing.T, pairs []pair) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.ChangeTimeout)
	defer cancel()
	if err := lab.Poll(ctx, func() (bool, error) {
		before := forwarded(t, c.Nodes[0])
		exchange(t, pairs, "offloaded")
		return forwarded(t, c.Nodes[0]) == before, nil
	}); err != nil {
		t.Fatalf("the connections are not offloaded: %v: %s", err, forwarded(t, c.Nodes[0]))
	}
}

// webFromY allows the pods of y to connect to the pods app=web of x.
var webFromY = labtest.Policy("x", "web", `{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: y}}}]}]}`)

// noData expects no data at both ends. The node resets a masqueraded connection after its
// entry was removed, because what the server sends is then for the node itself.
func (p pair) noData(t *testing.T) {
	for side, end := range map[string]net.Conn{"client": p.client, "server": p.server} {
		end.SetReadDeadline(time.Now().Add(stallTime))
		got := make([]byte, 16)
		if n, err := end.Read(got); n > 0 {
			t.Errorf("%s: the %s received %q, %v, want nothing", p.name, side, got[:n], err)
		}
	}
}

// isolated isolates pods from all others in the given directions.
func isolated(app, directions string) string {
	return labtest.Policy("x", app, fmt.Sprintf(`{podSelector: {matchLabels: {app: %s}}, policyTypes: [%s]}`, app, directions))
}

// ending ends the offloaded connections of x/web, and returns when the agent reports it.
type ending func(t *testing.T, c *cluster, agent *lab.Agent, connections float64)

// endings are the reasons for which an agent ends connections. With only ingress denied, a
// packet of the server would be allowed to open the connection in the opposite direction.
var endings = map[string]ending{
	"a policy changes": func(t *testing.T, c *cluster, agent *lab.Agent, connections float64) {
		c.Replace(t, "policies", isolated("web", "Ingress"))
		waitForBlocked(t, agent, connections)
	},
	"the label of the pod changes": func(t *testing.T, c *cluster, agent *lab.Agent, connections float64) {
		changed := c.Pods["x/web"].Object.DeepCopy()
		changed.Labels["app"] = "closed"
		c.Put(t, labtest.PodFile("x/web"), changed)
		waitForBlocked(t, agent, connections)
	},
	"the policy changes while no agent runs": func(t *testing.T, c *cluster, agent *lab.Agent, connections float64) {
		if err := agent.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Replace(t, "policies", isolated("web", "Ingress"))
		agent = c.StartOn(t, c.Nodes[0])
		labtest.WaitReady(t, agent)
		labtest.Until(t, agent, connections, func(m lab.Metrics) float64 { return m.Sum("netpol_conntrack_blocked_total") })
	},
	"another pod gets the addresses": func(t *testing.T, c *cluster, agent *lab.Agent, connections float64) {
		next := labtest.NewPod("x/web@1 app=sealed")
		next.Status, next.UID = c.Pods["x/web"].Object.Status, "another"
		c.Put(t, labtest.PodFile("x/web"), next)
		labtest.Until(t, agent, connections, func(m lab.Metrics) float64 { return m.Sum("netpol_conntrack_removed_total") })
		if err := labtest.Within(t, func() bool { return c.empty(t, "stale-families") }); err != nil {
			t.Fatal(err)
		}
	},
}

// TestOffloadedConnectionsEnd: a flowtable forwards connections past all hooks, and then
// policies deny them. Once the agent reports that, no packet passes in either direction.
func TestOffloadedConnectionsEnd(t *testing.T) {
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, "x/web@1 app=web", "x/other@1 app=other", "y/near@1")
			needFlowtables(t, c.Nodes[0])
			vips := c.service(t, c.Pods["x/web"])
			c.Apply(t, "closed", isolated("closed", "Ingress"))
			c.Apply(t, "sealed", isolated("sealed", "Ingress, Egress"))
			c.Apply(t, "policies", webFromY)
			agent := c.Start(t)[0]
			c.Expect(t, labtest.Yes("y/near", "x/web", "tcp/80"))
			waitForPasses(t, agent, 2) // these passes do not find the change below

			listener := listenOn(t, c.Hosts["x/web"], pairPort)
			var denied []pair
			for _, vip := range vips {
				denied = append(denied, c.openPair(t, "y/near", listener, vip))
			}
			for _, addr := range c.Pods["x/web"].Addrs {
				denied = append(denied, c.openPair(t, "y/near", listener, netip.AddrPortFrom(addr, pairPort)), c.openFlow(t, "y/near", "x/web", addr))
			}
			other := listenOn(t, c.Hosts["x/other"], pairPort)
			spared := []pair{c.openPair(t, "y/near", other, netip.AddrPortFrom(c.Pods["x/other"].Addr(lab.IPv4), pairPort))}
			flowtable(t, c.Nodes[0])
			c.offload(t, slices.Concat(denied, spared))

			end(t, c, agent, float64(len(denied)))
			each(denied, func(p pair) {
				p.send(t, "denied")
				p.noData(t)
			})
			exchange(t, spared, "spared")
		})
	}
}

// TestOffloadedConnectionsResume: connections that were offloaded, denied and allowed again
// continue, and are offloaded again.
func TestOffloadedConnectionsResume(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/near@1")
	needFlowtables(t, c.Nodes[0])
	vips := c.service(t, c.Pods["x/web"])
	c.Apply(t, "policies", webFromY)
	agent := c.Start(t)[0]
	c.Expect(t, labtest.Yes("y/near", "x/web", "tcp/80"))
	listener := listenOn(t, c.Hosts["x/web"], pairPort)
	var pairs []pair
	for _, to := range append(vips, netip.AddrPortFrom(c.Pods["x/web"].Addr(lab.IPv4), pairPort)) {
		pairs = append(pairs, c.openPair(t, "y/near", listener, to))
	}
	flowtable(t, c.Nodes[0])
	c.offload(t, pairs)
	c.Replace(t, "policies", isolated("web", "Ingress"))
	waitForBlocked(t, agent, float64(len(pairs)))
	each(pairs, func(p pair) {
		p.send(t, "denied")
		p.silent(t)
	})
	c.Replace(t, "policies", webFromY)
	each(pairs, func(p pair) { p.received(t, "denied", passTime) })
	c.offload(t, pairs)
}
