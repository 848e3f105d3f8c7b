package attacks

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// Administrators' policies for the pods app=web that deny TCP port 80.
const (
	anpOf = "---\napiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: hidden}\n" +
		"spec: {priority: 10, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}, %s}\n"
	cnpOf = "---\napiVersion: policy.networking.k8s.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: hidden}\n" +
		"spec: {tier: Admin, priority: 10, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}, %s}\n"

	dbPods = "[{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}]"
	anp80  = "ports: [{portNumber: {protocol: TCP, port: 80}}]"
	cnp80  = "protocols: [{tcp: {destinationPort: {number: 80}}}]"
)

// TestHiddenPorts connects with ordinary TCP sockets that have IPv6 options. The TCP header
// is behind extension headers: within the part of the packet that is copied to the agent,
// or behind it. Where TCP port 80 is denied, no packet connects to it (NP-44).
func TestHiddenPorts(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/web@1 app=web", "y/db@2 app=db")
	c.Start(t, labtest.WithAdmin)

	jumbo(t, c)

	h := hidden{Cluster: c, from: "x/web", to: "y/db"}
	h.expect(t, 80, true, 88, 256, longest) // without a policy everything arrives

	for _, tc := range []struct {
		name, policy string
		from, to     string
	}{
		{"AdminNetworkPolicy egress", fmt.Sprintf(anpOf, "egress: [{action: Deny, to: "+dbPods+", "+anp80+"}]"), "x/web", "y/db"},
		{"AdminNetworkPolicy ingress", fmt.Sprintf(anpOf, "ingress: [{action: Deny, from: "+dbPods+", "+anp80+"}]"), "y/db", "x/web"},
		{"AdminNetworkPolicy networks", fmt.Sprintf(anpOf, "egress: [{action: Deny, to: [{networks: ['::/0', 0.0.0.0/0]}], "+anp80+"}]"), "x/web", "y/db"},
		{"AdminNetworkPolicy nodes", fmt.Sprintf(anpOf, "egress: [{action: Deny, to: [{nodes: {}}], "+anp80+"}]"), "x/web", "node-2"},
		{"AdminNetworkPolicy own node", fmt.Sprintf(anpOf, "egress: [{action: Deny, to: [{nodes: {}}], "+anp80+"}]"), "x/web", "node-1"},
		{"AdminNetworkPolicy named port", fmt.Sprintf(anpOf, "egress: [{action: Deny, to: "+dbPods+", ports: [{namedPort: web}]}]"), "x/web", "y/db"},
		{"ClusterNetworkPolicy egress", fmt.Sprintf(cnpOf, "egress: [{action: Deny, to: "+dbPods+", "+cnp80+"}]"), "x/web", "y/db"},
		{"ClusterNetworkPolicy ingress", fmt.Sprintf(cnpOf, "ingress: [{action: Deny, from: "+dbPods+", "+cnp80+"}]"), "y/db", "x/web"},
		{"ClusterNetworkPolicy nodes", fmt.Sprintf(cnpOf, "egress: [{action: Deny, to: [{nodes: {}}], "+cnp80+"}]"), "x/web", "node-2"},
		{"Accept of port 81, then Deny", fmt.Sprintf(cnpOf, "egress: [{action: Accept, to: "+dbPods+", protocols: [{tcp: {destinationPort: {number: 81}}}]}, {action: Deny, to: "+dbPods+"}]"), "x/web", "y/db"},
		{"Pass of port 80 to isolation", fmt.Sprintf(cnpOf, "egress: [{action: Pass, to: "+dbPods+", "+cnp80+"}, {action: Accept, to: "+dbPods+"}]") +
			labtest.Policy("x", "closed", "{podSelector: {}, policyTypes: [Egress]}"), "x/web", "y/db"},
		{"NetworkPolicy ports", labtest.Policy("x", "ports", "{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 81}]}]}"), "x/web", "y/db"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.Apply(t, "hidden", tc.policy)
			c.Expect(t, labtest.No(tc.from, tc.to, "tcp/80"), labtest.Yes(tc.from, tc.to, "tcp/81"))
			h := hidden{Cluster: c, from: tc.from, to: tc.to}
			h.expect(t, 80, false, 88, 256, longest)
			h.expect(t, 81, true, 88, 256)
			h.expect(t, 81, false, longest)
		})
	}
	t.Run("Allow of every port", func(t *testing.T) {
		c.Apply(t, "hidden", fmt.Sprintf(anpOf, "egress: [{action: Allow, to: "+dbPods+"}, {action: Deny, to: [{networks: ['::/0', 0.0.0.0/0]}], "+anp80+"}]"))
		c.Expect(t, labtest.No("x/web", "node-2", "tcp/80"), labtest.Yes("x/web", "y/db", "tcp/80"))
		h.expect(t, 80, true, 88, 256, longest)
	})
}

// longest is the longest header that a socket accepts. It does not fit into a packet of
// 1,500 bytes, and the kernel does not fragment TCP packets.
const longest = 8 * 255

// jumbo sets the MTU of every link to 9,000 bytes.
func jumbo(t *testing.T, c *labtest.Cluster) {
	t.Helper()
	for _, host := range c.Hosts {
		_, err := host.Run(t.Context(), "", "sh", "-c", `for device in $(ip -brief link | sed -E 's/[@ ].*//'); do
			[ "$device" = lo ] || ip link set "$device" mtu 9000 || exit 1; done`)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// hidden opens connections from one host to another over IPv6.
type hidden struct {
	*labtest.Cluster
	from, to string
}

// expect tries headers of these lengths, both as destination options and as hop-by-hop
// options.
func (h hidden) expect(t *testing.T, port uint16, connects bool, lengths ...int) {
	t.Helper()
	var wg sync.WaitGroup
	for name, option := range map[string]int{"destination options": unix.IPV6_DSTOPTS, "hop-by-hop options": unix.IPV6_HOPOPTS} {
		for _, length := range lengths {
			wg.Go(func() {
				if err := h.try(t, port, connects, option, length); err != nil {
					t.Errorf("%s to %s, port %d, behind %d bytes of %s: %v", h.from, h.to, port, length, name, err)
				}
			})
		}
	}
	wg.Wait()
}

func (h hidden) try(t *testing.T, port uint16, connects bool, option, length int) error {
	to := netip.AddrPortFrom(h.Hosts[h.to].Addr(lab.IPv6), port)
	header := string(labtest.DestinationOptions(length, 0, nil))
	set := func(fd int) error { return unix.SetsockoptString(fd, unix.IPPROTO_IPV6, option, header) }
	dial := func(timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		conn, err := h.Hosts[h.from].Dial(ctx, lab.TCP, to, set)
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	if !connects {
		if err := dial(labtest.Silence); err == nil {
			return fmt.Errorf("it connects")
		}
		return nil
	}
	var last error
	if err := labtest.Within(t, func() bool { last = dial(time.Second); return last == nil }); err != nil {
		return fmt.Errorf("it does not connect: %w", last)
	}
	return nil
}

// TestHiddenProtocols sends packets that are or resemble TCP to port 80. Without a policy
// each arrives. Where port 80 is denied none does, and each is counted. Packets of
// protocols without ports still arrive (NP-44, CN-12).
func TestHiddenProtocols(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db")
	agent := c.Start(t, labtest.WithAdmin)[0]
	from, to := c.Hosts["y/db"], c.Hosts["x/web"]
	arrived, err := to.Capture(func(packet []byte) bool { return labtest.IsFrom(packet, from) })
	if err != nil {
		t.Fatal(err)
	}
	send := func(t *testing.T, p odd, port uint16, arrives bool) {
		t.Helper()
		delivered, denied := arrived.Count(), labtest.Denied(labtest.Metrics(t, agent))
		if err := from.SendIP(p.packet(from, to, port)); err != nil {
			t.Fatal(err)
		}
		if arrives {
			if err := labtest.Within(t, func() bool { return arrived.Count() > delivered }); err != nil {
				t.Error("the packet does not arrive")
			}
			return
		}

		if got := labtest.Until(t, agent, denied+1, labtest.Denied); got != denied+1 {
			t.Errorf("denied packets went from %v to %v, want one more", denied, got)
		}
		if got := arrived.Count() - delivered; got != 0 {
			t.Errorf("%d packets were delivered", got)
		}
	}
	c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"))
	for _, p := range oddPackets {
		t.Run("open/"+p.name, func(t *testing.T) { send(t, p, 40000, true) })
	}
	c.Enforce(t, agent, "hidden", fmt.Sprintf(anpOf, "ingress: [{action: Deny, from: "+dbPods+", "+anp80+"}]"))
	c.Expect(t, labtest.No("y/db", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/81"))
	labtest.AwaitVerdicts(t, agent)
	// Protocols without ports reuse their earlier connections, which are blocked now, so the
	// kernel would drop their packets.
	labtest.ForgetConnections(t, c.Nodes[0])
	for _, p := range oddPackets {
		t.Run("denied/"+p.name, func(t *testing.T) { send(t, p, 41000, p.known) })
	}
}

// odd is a packet that is difficult to parse.
type odd struct {
	name   string
	family lab.Family
	proto  byte // in the IP header
	// rest is the part after the IP header. For a protocol with ports it opens a connection
	// from port to port 80.
	rest func(port uint16) []byte
	// known is set if the packet certainly has no ports.
	known bool
}

func (p odd) packet(from, to *lab.Host, port uint16) []byte {
	src, dst, rest := from.Addr(p.family), to.Addr(p.family), p.rest(port)
	if p.family == lab.IPv4 {
		return labtest.IPv4(src, dst, p.proto, 0, rest)
	}
	return labtest.IPv6(src, dst, p.proto, rest)
}

const (
	protoGRE, protoESP, protoAH  = 47, 50, 51
	protoIPComp, protoUnassigned = 108, 200
)

var oddPackets = []odd{
	{"ESP", lab.IPv4, protoESP, noise, false},
	{"ESP over IPv6", lab.IPv6, protoESP, noise, false},
	{"IPComp", lab.IPv4, protoIPComp, noise, false},
	{"an unassigned protocol", lab.IPv4, protoUnassigned, noise, false},
	{"an unassigned extension header", lab.IPv6, labtest.ProtoDestOpts, func(port uint16) []byte {
		return labtest.DestinationOptions(8, protoUnassigned, labtest.DestinationOptions(8, labtest.ProtoTCP, labtest.TCPSYN(port)))
	}, false},
	{"half a TCP header", lab.IPv4, labtest.ProtoTCP, func(port uint16) []byte { return labtest.TCPSYN(port)[:12] }, false},
	{"half a TCP header over IPv6", lab.IPv6, labtest.ProtoTCP, func(port uint16) []byte { return labtest.TCPSYN(port)[:12] }, false},
	{"two headers of 400 bytes", lab.IPv6, labtest.ProtoDestOpts, func(port uint16) []byte {
		return labtest.DestinationOptions(400, labtest.ProtoDestOpts, labtest.DestinationOptions(400, labtest.ProtoTCP, labtest.TCPSYN(port)))
	}, false},
	{"TCP behind an authentication header", lab.IPv4, protoAH, authenticated, false},
	{"TCP behind an authentication header over IPv6", lab.IPv6, protoAH, authenticated, false},
	{"GRE", lab.IPv4, protoGRE, noise, true},
	{"no next header", lab.IPv6, labtest.ProtoNone, noise, true},
	{"no next header behind options", lab.IPv6, labtest.ProtoDestOpts, func(uint16) []byte {
		return labtest.DestinationOptions(88, labtest.ProtoNone, nil)
	}, true},
}

func noise(uint16) []byte { return make([]byte, 64) }

// authenticated returns a TCP header behind an authentication header of 24 bytes.
func authenticated(port uint16) []byte {
	header := make([]byte, 24)
	header[0], header[1] = labtest.ProtoTCP, 24/4-2
	return append(header, labtest.TCPSYN(port)...)
}
