package attacks

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// oneWayPort is where x/web gets datagrams, which it never answers.
const oneWayPort = 9999

// TestInjectedEntriesOpenNothing: another program adds entries with the agent's mark to the
// connection table, or gives it to existing ones, like conntrackd. Packets that are not answered
// pass only if policies allow them, also after a restart of the agent.
func TestInjectedEntriesOpenNothing(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/client@1", "y/db@1 app=db")
	agent := c.Start(t)[0]
	c.Enforce(t, agent, "policies", onlyDB)
	counter := countOneWay(t, c)
	port := uint16(20000)
	for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
		for _, restart := range []bool{false, true} {
			port++
			o := oneWay{c, counter, family, port}
			o.run(t, fmt.Sprintf("conntrack -I -p udp -s $FROM -d $TO --sport $PORT --dport %d -t 600 --mark 0x1000", oneWayPort), "y/client")
			if !o.passes(t, agent, "y/db") {
				t.Errorf("%s: an allowed datagram is dropped", family)
			}
			if restart {
				if err := agent.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
				agent = c.Start(t)[0]
			}
			for _, step := range []struct {
				name, script, from string
				passes             bool
			}{
				{"an injected entry", "", "y/client", false},
				{"an injected entry, again", "", "y/client", false},
				{"an updated mark", "conntrack -U -p udp -s $FROM --sport $PORT --mark 0x1005", "y/client", false},
				{"an accepted connection", "", "y/db", true},
				{"an accepted connection without its mark", "conntrack -U -p udp -s $FROM --sport $PORT --mark 0", "y/db", true},
				{"a removed entry", "conntrack -D -p udp -s $FROM --sport $PORT", "y/db", true},
			} {
				if step.script != "" {
					o.run(t, step.script, step.from)
				}
				if got := o.passes(t, agent, step.from); got != step.passes {
					t.Errorf("%s, restarted %v, %s: passes %v, want %v", family, restart, step.name, got, step.passes)
				}
			}
		}
	}
}

// TestMarkedSocketsOpenNothing: a privileged pod sets the agent's bits in the marks of its packets.
func TestMarkedSocketsOpenNothing(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/client@1", "y/db@1 app=db")
	agent := c.Start(t)[0]
	c.Enforce(t, agent, "policies", onlyDB)
	counter := countOneWay(t, c)
	for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
		for _, mark := range []int{0x1000, 0x800, 0x1800} {
			o := oneWay{c, counter, family, 0}
			marked := func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark) }
			for from, want := range map[string]bool{"y/client": false, "y/db": true} {
				conn, err := c.Hosts[from].Dial(t.Context(), lab.UDP, o.to(), marked)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				for range 2 {
					if got := o.sends(t, agent, conn.Write); got != want {
						t.Errorf("%s, mark %#x: a datagram of %s passes: %v, want %v", family, mark, from, got, want)
					}
				}
			}
		}
	}
}

// TestMarkedTunnelsOpenNothing: the node's rules set the agent's bits in what arrives in a tunnel, and the
// inner packet keeps them. Rules before input do not matter, because the agent's clear them there.
func TestMarkedTunnelsOpenNothing(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/web@1 app=web", "y/client@2", "y/db@2 app=db")
	node, other := c.Nodes[0], c.Nodes[1]
	looseFilter(t, node)
	for i, local := range node.Addrs {
		script(t, node.Host, fmt.Sprintf("ip link add tunnel%d address 02:00:00:00:00:01 type vxlan id 1 dstport %d local %s nolearning\nip link set tunnel%[1]d up", i, vxlanPort, local))
	}
	agent := c.Start(t)[0]
	c.Enforce(t, agent, "policies", onlyDB)
	counter := countOneWay(t, c)
	for _, mark := range []string{"0", "0x1000", "0x800", "0x1800"} {
		script(t, node.Host, fmt.Sprintf(`nft -f - <<< "
			table inet outer { }; delete table inet outer; table inet outer { counter kept { }
				chain input { type filter hook input priority 300; udp dport %d meta mark set %s; }
				chain prerouting { type filter hook prerouting priority -350; udp dport %d meta mark %[2]s counter name kept; }
			}"`, vxlanPort, mark, oneWayPort))
		for _, outer := range node.Addrs {
			tunnel := openUDP(t, other.Host, netip.AddrPortFrom(outer, vxlanPort))
			for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
				for from, want := range map[string]bool{"y/client": false, "y/db": true} {
					o := oneWay{c, counter, family, 0}
					for range 2 {
						frame := inFrame(c.Hosts[from].Addr(family), o.to())
						if got := o.sends(t, agent, func([]byte) (int, error) { return tunnel.Write(frame) }); got != want {
							t.Errorf("%s in a tunnel to %s, mark %s: a datagram of %s passes: %v, want %v", family, outer, mark, from, got, want)
						}
					}
				}
			}
		}
		if out, err := node.Run(t.Context(), "", "nft", "list", "counter", "inet", "outer", "kept"); err != nil || strings.Contains(out, "packets 0") {
			t.Errorf("no inner packet has the mark %s: %v %s", mark, err, out)
		}
	}
}

// TestQueuesOfOthersOpenNothing: another program gets packets by queues before the agent, and with its
// verdicts writes the agent's bits into packets and connections, which it calls answered.
func TestQueuesOfOthersOpenNothing(t *testing.T) {
	c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/client@1", "y/db@1 app=db")
	node := c.Nodes[0].Host
	const number = 9
	serveQueue(t, node, number)
	agent := c.Start(t)[0]
	c.Enforce(t, agent, "policies", onlyDB)
	counter := countOneWay(t, c)
	port := uint16(22000)
	for _, chain := range []string{"PREROUTING", "FORWARD", "POSTROUTING"} {
		for _, iptables := range []string{"iptables-nft", "ip6tables-nft"} {
			script(t, node, fmt.Sprintf("%s -t mangle -F; %[1]s -t mangle -A %s -p udp --dport %d -j NFQUEUE --queue-num %d", iptables, chain, oneWayPort, number))
		}
		for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
			port++
			o := oneWay{c, counter, family, port}
			for range 2 {
				for from, want := range map[string]bool{"y/client": false, "y/db": true} {
					if got := o.passes(t, agent, from); got != want {
						t.Errorf("%s, %s: a datagram of %s passes: %v, want %v", chain, family, from, got, want)
					}
				}
			}
			c.Enforce(t, agent, "policies", strings.ReplaceAll(onlyDB, "app: db", "app: none"))
			waitFor(t, func() bool { return !o.passes(t, agent, "y/db") }, func() string {
				return fmt.Sprintf("%s, %s: a connection that is denied goes on", chain, family)
			})
			c.Enforce(t, agent, "policies", onlyDB)
		}
	}
}

// serveQueue accepts the packets of a queue of the host, with both marks, as answered.
func serveQueue(t *testing.T, host *lab.Host, number uint16) {
	t.Helper()
	const packet, verdict, config = unix.NFNL_SUBSYS_QUEUE << 8, unix.NFNL_SUBSYS_QUEUE<<8 | 1, unix.NFNL_SUBSYS_QUEUE<<8 | 2
	header := []byte{0, 0, byte(number >> 8), byte(number)}
	var conn *netlink.Conn
	send := func(kind netlink.HeaderType, attributes ...netlink.Attribute) error {
		data, err := netlink.MarshalAttributes(attributes)
		if err == nil {
			_, err = conn.Send(netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request}, Data: append(slices.Clone(header), data...)})
		}
		return err
	}
	err := host.Do(func() (err error) {
		if conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
			return err
		}
		return errors.Join(
			send(config, netlink.Attribute{Type: 1, Data: []byte{1, 0, 0, 0}}),    // bind
			send(config, netlink.Attribute{Type: 2, Data: []byte{0, 0, 0, 0, 1}})) // without contents
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	connection, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: 3, Data: []byte{0, 0, 0, 0x06}},    // CTA_STATUS: SEEN_REPLY, ASSURED
		{Type: 8, Data: []byte{0, 0, 0x10, 0x00}}, // CTA_MARK
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			messages, err := conn.Receive()
			if err != nil {
				return // closed
			}
			for _, m := range messages {
				attributes, err := netlink.UnmarshalAttributes(m.Data[4:])
				if m.Header.Type != packet || err != nil {
					continue
				}
				id := attributes[0].Data[:4]
				_ = send(verdict,
					netlink.Attribute{Type: 2, Data: append([]byte{0, 0, 0, 1}, id...)}, // accept
					netlink.Attribute{Type: 3, Data: []byte{0, 0, 0x18, 0x00}},          // NFQA_MARK
					netlink.Attribute{Type: 11 | netlink.Nested, Data: connection})      // NFQA_CT
			}
		}
	}()
}

// inFrame returns a datagram in a frame in VXLAN.
func inFrame(src netip.Addr, to netip.AddrPort) []byte {
	data := labtest.UDP(40000, to.Port(), []byte("one way"))
	packet := labtest.IPv6(src, to.Addr(), labtest.ProtoUDP, data)
	if src.Is4() {
		packet = labtest.Finished(labtest.IPv4(src, to.Addr(), labtest.ProtoUDP, 0, data))
	}
	header := []byte{0x08, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	return append(header, labtest.Tagged(packet)...)
}

// countOneWay counts the datagrams to x/web.
func countOneWay(t *testing.T, c *labtest.Cluster) labtest.Counter {
	t.Helper()
	if _, err := c.Hosts["x/web"].Sink(oneWayPort); err != nil {
		t.Fatal(err)
	}
	return labtest.NewCounter(t, c.Nodes[0], fmt.Sprintf("udp dport %d", oneWayPort))
}

// oneWay is a connection by UDP to x/web that is never answered.
type oneWay struct {
	*labtest.Cluster
	counter labtest.Counter
	family  lab.Family
	port    uint16 // of the sender
}

func (o oneWay) to() netip.AddrPort {
	return netip.AddrPortFrom(o.Hosts["x/web"].Addr(o.family), oneWayPort)
}

// run runs a script on the node, with the addresses of the connection.
func (o oneWay) run(t *testing.T, script, from string) {
	t.Helper()
	text := strings.NewReplacer("$FROM", o.Hosts[from].Addr(o.family).String(), "$TO", o.to().Addr().String(), "$PORT", fmt.Sprint(o.port)).Replace(script)
	if out, err := o.Nodes[0].Run(t.Context(), text, "bash"); err != nil {
		t.Fatalf("%s: %v: %s", text, err, out)
	}
}

// passes sends a datagram from the connection's port and reports whether it passes the node.
func (o oneWay) passes(t *testing.T, agent *lab.Agent, from string) bool {
	t.Helper()
	sender, err := o.Hosts[from].ListenPacket(netip.AddrPortFrom(o.Hosts[from].Addr(o.family), o.port))
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	return o.sends(t, agent, func(b []byte) (int, error) { return sender.WriteToUDPAddrPort(b, o.to()) })
}

func (o oneWay) sends(t *testing.T, agent *lab.Agent, send func([]byte) (int, error)) bool {
	t.Helper()
	waiting := func() float64 { return labtest.Unanswered(labtest.Metrics(t, agent)) }
	arrived, left, before := o.counter.Arrived(t), o.counter.Left(t), waiting() // not 0 after a restart
	if _, err := send([]byte("one way")); err != nil {
		t.Fatal(err)
	}
	if err := labtest.Within(t, func() bool { return o.counter.Arrived(t) > arrived }); err != nil {
		t.Fatal("a datagram does not reach the node")
	}
	if err := labtest.Within(t, func() bool { return waiting() == before }); err != nil {
		t.Fatal("a datagram has no verdict")
	}
	return o.counter.Left(t) > left
}
