package attacks

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// Ports of the deleted pod and of its Services.
const (
	echoPort    = 80   // every pod answers here
	flowPort    = 7000 // UDP that the test reads and writes
	servicePort = 8000
)

// closedSpec isolates a pod in both directions from all namespaces except z.
const closedSpec = `{podSelector: {matchLabels: {app: closed}}, policyTypes: [Ingress, Egress],
	ingress: [{from: [{namespaceSelector: {matchLabels: {ns: z}}}]}],
	egress: [{to: [{namespaceSelector: {matchLabels: {ns: z}}}]}]}`

// succession changes the objects so that an isolated pod takes over the addresses of x/old.
// It returns the agent that runs afterwards and the new pod.
type succession func(t *testing.T, c *labtest.Cluster, agent *lab.Agent) (*lab.Agent, *corev1.Pod)

var successions = map[string]succession{
	"the pod is deleted and its address is used again": func(t *testing.T, c *labtest.Cluster, agent *lab.Agent) (*lab.Agent, *corev1.Pod) {
		removeObject(t, c)
		labtest.Until(t, agent, 1, removed)
		return agent, show(t, c, successor("x/new", c.Pods["x/old"]))
	},
	"the pod has ended and its object stays": func(t *testing.T, c *labtest.Cluster, agent *lab.Agent) (*lab.Agent, *corev1.Pod) {
		old := c.Pods["x/old"].Object.DeepCopy()
		old.Status.Phase = corev1.PodSucceeded
		show(t, c, old)
		labtest.Until(t, agent, 1, removed)
		return agent, show(t, c, successor("x/new", c.Pods["x/old"]))
	},
	"the object is replaced by one of the same name": func(t *testing.T, c *labtest.Cluster, agent *lab.Agent) (*lab.Agent, *corev1.Pod) {
		next := successor("x/old", c.Pods["x/old"])
		next.UID = "another"
		return agent, show(t, c, next)
	},
	"the new pod is there before the old one is gone": func(t *testing.T, c *labtest.Cluster, agent *lab.Agent) (*lab.Agent, *corev1.Pod) {
		next := successor("x/new", c.Pods["x/old"])
		next.CreationTimestamp.Time = time.Unix(1e9, 0) // later than the creation of the other pod, which is unset
		return agent, show(t, c, next)
	},
	"the agent restarts meanwhile": func(t *testing.T, c *labtest.Cluster, agent *lab.Agent) (*lab.Agent, *corev1.Pod) {
		agent.Kill()
		removeObject(t, c)
		next := show(t, c, successor("x/new", c.Pods["x/old"]))
		return c.Start(t)[0], next
	},
}

func removeObject(t *testing.T, c *labtest.Cluster) {
	t.Helper()
	if err := c.Manifests.Remove(labtest.PodFile("x/old")); err != nil {
		t.Fatal(err)
	}
}

// show adds a pod to the agents' manifests.
func show(t *testing.T, c *labtest.Cluster, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	c.Put(t, labtest.PodFile(pod.Namespace+"/"+pod.Name), pod)
	return pod
}

func removeHost(t *testing.T, c *labtest.Cluster, pod *lab.Pod) {
	t.Helper()
	if err := c.Remove(t.Context(), pod.Host); err != nil {
		t.Fatal(err)
	}
}

// successor returns an isolated pod with the addresses of another one.
func successor(name string, old *lab.Pod) *corev1.Pod {
	next := labtest.NewPod(name + "@1 app=closed")
	next.Status.PodIPs, next.Status.Phase = old.Object.Status.PodIPs, corev1.PodRunning
	return next
}

func removed(m lab.Metrics) float64 { return m.Sum("netpol_conntrack_removed_total") }

// TestAddressReuseEndsConnections opens connections of every kind with a pod that is then
// deleted, and one with a pod that stays. An isolated pod gets the addresses of the first
// one, and no packet of the old connections is delivered to it.
func TestAddressReuseEndsConnections(t *testing.T) {
	for name, succeed := range successions {
		t.Run(name, func(t *testing.T) {
			c := labtest.NewCluster(t, 1, "x/old@1 app=open", "x/other@1 app=open", "y/client@1", "z/friend@1")
			vips := exposeUDP(t, c.Nodes[0], c.Pods["x/old"])
			c.Apply(t, "policies", labtest.Policy("x", "closed", closedSpec))
			agent := c.Start(t)[0]
			c.Expect(t, labtest.Yes("y/client", "x/old", "tcp/80"))
			flows := openFlows(t, c, vips)
			spared := dial(t, c, lab.TCP, netip.AddrPortFrom(c.Pods["x/other"].Addr(lab.IPv4), echoPort))

			// The new pod gets its network only now: it would answer a late packet of the client
			// with a reset, which ends the connection.
			removeHost(t, c, c.Pods["x/old"])
			agent, object := succeed(t, c, agent)
			labtest.Until(t, agent, 1, removed)
			next := c.Attach(t, object)[0]
			// The policy of the new pod is in force when it denies a connection of another client.
			c.Expect(t, labtest.No("x/other", next.Name, "tcp/80"), labtest.Yes("z/friend", next.Name, "tcp/80"), labtest.Yes(next.Name, "z/friend", "udp/81"))

			denied := labtest.Denied(labtest.Metrics(t, agent))
			arrived := arrivals(t, c, next)
			sent := flows.goOn(t, next)
			if got := labtest.Until(t, agent, denied+float64(sent), labtest.Denied) - denied; got < float64(sent) {
				t.Errorf("%v packets of old connections were denied, want %d", got, sent)
			}
			for what, capture := range arrived {
				if n := capture.Count(); n != 0 {
					t.Errorf("%d packets of old connections arrived at %s", n, what)
				}
			}
			exchange(t, spared, "the connection of the pod that stays")
		})
	}
}

// flows are connections of y/client with x/old.
type flows struct {
	clients []net.Conn     // opened by the client
	fromPod []*net.UDPConn // the client's sockets for flows that the pod has opened
	sources []net.Addr     // the sources of these flows
	replies []netip.AddrPort
}

// openFlows opens TCP and UDP connections and pings in both directions, directly and
// through Services.
func openFlows(t *testing.T, c *labtest.Cluster, vips []netip.AddrPort) *flows {
	t.Helper()
	f := &flows{}
	client, old := c.Hosts["y/client"], c.Pods["x/old"]
	for i, addr := range old.Addrs {
		for _, proto := range []lab.Proto{lab.TCP, lab.UDP, lab.ICMP} {
			f.clients = append(f.clients, dial(t, c, proto, netip.AddrPortFrom(addr, echoPort)))
		}
		f.clients = append(f.clients, dial(t, c, lab.UDP, vips[i]))

		// A flow that the pod opens, and one that it answers.
		at := netip.AddrPortFrom(client.Addrs[i], flowPort)
		server, err := client.ListenPacket(at)
		if err != nil {
			t.Fatal(err)
		}
		opened, err := old.Dial(t.Context(), lab.UDP, at)
		if err != nil {
			t.Fatal(err)
		}
		f.fromPod = append(f.fromPod, server)
		f.sources = append(f.sources, answer(t, server, opened))

		listener, err := old.ListenPacket(netip.AddrPortFrom(addr, flowPort))
		if err != nil {
			t.Fatal(err)
		}
		asking, err := client.Dial(t.Context(), lab.UDP, netip.AddrPortFrom(addr, flowPort))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { asking.Close() })
		f.replies = append(f.replies, netip.MustParseAddrPort(answer(t, listener, asking).String()))
	}
	return f
}

// goOn sends one packet on each connection as if the old pod still existed, and returns the
// number of packets.
func (f *flows) goOn(t *testing.T, next *lab.Pod) (sent int) {
	t.Helper()
	note := func(err error) {
		if err != nil {
			t.Error(err)
		}
		sent++
	}
	for _, conn := range f.clients {
		_, err := conn.Write(request(conn))
		note(err)
	}
	for i, server := range f.fromPod {
		_, err := server.WriteTo([]byte("answer"), f.sources[i])
		note(err)
	}
	for i, to := range f.replies {
		conn, err := next.ListenPacket(netip.AddrPortFrom(next.Addrs[i], flowPort))
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.WriteToUDPAddrPort([]byte("answer"), to)
		note(err)
	}
	return sent
}

// arrivals captures what y/client and the new pod get from each other.
func arrivals(t *testing.T, c *labtest.Cluster, next *lab.Pod) map[string]*lab.Capture {
	t.Helper()
	captures := make(map[string]*lab.Capture)
	client := c.Hosts["y/client"]
	for from, to := range map[*lab.Host]*lab.Host{client: next.Host, next.Host: client} {
		capture, err := to.Capture(func(packet []byte) bool { return labtest.IsFrom(packet, from) })
		if err != nil {
			t.Fatal(err)
		}
		captures[to.Name] = capture
	}
	return captures
}

// dial opens a connection from y/client and lets the other end answer once.
func dial(t *testing.T, c *labtest.Cluster, proto lab.Proto, to netip.AddrPort) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.ChangeTimeout)
	defer cancel()
	conn, err := c.Hosts["y/client"].Dial(ctx, proto, to)
	if err != nil {
		t.Fatalf("%s %s: %v", proto, to, err)
	}
	t.Cleanup(func() { conn.Close() })
	exchange(t, conn, fmt.Sprintf("%s %s", proto, to))
	return conn
}

// exchange makes the other end of a connection answer.
func exchange(t *testing.T, conn net.Conn, what string) {
	t.Helper()
	conn.SetDeadline(time.Now().Add(labtest.ChangeTimeout))
	if _, err := conn.Write(request(conn)); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if _, err := conn.Read(make([]byte, 512)); err != nil {
		t.Fatalf("%s: no answer: %v", what, err)
	}
}

// request returns an echo request for an ICMP socket, and a line for any other.
func request(conn net.Conn) []byte {
	kind := byte(8)
	if addr, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil && addr.Addr().Is6() {
		kind = 128
	}
	return []byte{kind, 0, 0, 0, 0, 0, 0, 1, 'l', 'a', 'b'}
}

// answer sends one datagram from conn to server and one back, and returns the source
// address of the first.
func answer(t *testing.T, server *net.UDPConn, conn net.Conn) net.Addr {
	t.Helper()
	deadline := time.Now().Add(labtest.ChangeTimeout)
	server.SetDeadline(deadline)
	conn.SetDeadline(deadline)
	if _, err := io.WriteString(conn, "question"); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 64)
	_, from, err := server.ReadFrom(buffer)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.WriteTo([]byte("answer"), from); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(buffer); err != nil {
		t.Fatal(err)
	}
	return from
}

// exposeUDP gives a pod a Service of each family that translates both ends.
func exposeUDP(t *testing.T, node *lab.Node, pod *lab.Pod) []netip.AddrPort {
	t.Helper()
	vips := []netip.AddrPort{
		netip.AddrPortFrom(netip.MustParseAddr("10.96.0.10"), servicePort),
		netip.AddrPortFrom(netip.MustParseAddr("fd00:10:96::10"), servicePort),
	}
	rules := fmt.Sprintf(`
table inet service {
	chain prerouting {
		type nat hook prerouting priority dstnat
		ip daddr %s udp dport %d dnat ip to %s
		ip6 daddr %s udp dport %d dnat ip6 to %s
	}
	chain postrouting {
		type nat hook postrouting priority srcnat
		ct status dnat masquerade
	}
}
`, vips[0].Addr(), servicePort, netip.AddrPortFrom(pod.Addr(lab.IPv4), echoPort),
		vips[1].Addr(), servicePort, netip.AddrPortFrom(pod.Addr(lab.IPv6), echoPort))
	if _, err := node.Run(t.Context(), rules, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	return vips
}
