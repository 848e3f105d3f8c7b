package attacks

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// crowd opens connections to an agent's port and keeps them open.
type crowd struct {
	to    netip.AddrPort
	conns []net.Conn
}

// open opens connections from an address of a host and sends nothing. The zero address lets
// the kernel choose. The agent may close these connections.
func (c *crowd) open(t *testing.T, host *lab.Host, from netip.Addr, link, count int) {
	t.Helper()
	for range count {
		conn, err := host.Dial(t.Context(), lab.TCP, c.to, func(fd int) error {
			switch {
			case from.Is4():
				return unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()})
			case from.Is6():
				return unix.Bind(fd, &unix.SockaddrInet6{Addr: from.As16(), ZoneId: uint32(link)})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		c.conns = append(c.conns, conn)
	}
}

func (c *crowd) close() {
	for _, conn := range c.conns {
		conn.Close()
	}
}

// linkOf returns the index of a host's interface.
func linkOf(t *testing.T, host *lab.Host) (index int) {
	t.Helper()
	if err := host.Do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			index = link.Index
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return index
}

// addAddrs gives a host count consecutive addresses, beginning with first.
func addAddrs(t *testing.T, host *lab.Host, first netip.Prefix, count int) (addrs []netip.Addr) {
	t.Helper()
	var script string
	nodad := ""
	if first.Addr().Is6() {
		nodad = " nodad"
	}
	for addr := first.Addr(); len(addrs) < count; addr = addr.Next() {
		addrs = append(addrs, addr)
		script += fmt.Sprintf("addr add %s dev eth0%s\n", netip.PrefixFrom(addr, first.Bits()), nodad)
	}
	if _, err := host.Run(t.Context(), script, "ip", "-batch", "-"); err != nil {
		t.Fatal(err)
	}
	return addrs
}

// TestPodsDoNotTakeThePortFromOthers: pods of a node keep as many connections to the
// agent's port as they can, from addresses that one pod makes up and from the addresses of
// many pods. A client on another node and another pod of this node still read the metrics.
func TestPodsDoNotTakeThePortFromOthers(t *testing.T) {
	const perAddress = 10
	read := func(from *lab.Host, endpoint netip.AddrPort) error {
		c := client(from)
		defer c.CloseIdleConnections()
		return scrape(t.Context(), c, endpoint)
	}
	check := func(t *testing.T, c *labtest.Cluster, agent *lab.Agent, crowd *crowd) {
		t.Helper()
		defer crowd.close()
		for _, name := range []string{"z/outside", "y/local"} {
			for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
				endpoint := netip.AddrPortFrom(c.Hosts["node-1"].Addr(family), 9080)
				if err := read(c.Hosts[name], endpoint); err != nil {
					t.Errorf("%s reads the metrics by %v: %v", name, family, err)
				}
			}
		}

		m := labtest.Metrics(t, agent)
		if n := m.Sum("netpol_http_connections_refused_total", "clients", "pods"); n == 0 {
			t.Error("no connections of pods are counted")
		}
	}
	start := func(t *testing.T, bridge bool, pods ...string) (*labtest.Cluster, *lab.Agent) {
		t.Helper()
		c := labtest.NewCluster(t, 2, append(pods, "y/local@1", "z/outside@2")...)
		if bridge {
			labtest.BridgePods(t, c)
		}
		agent := c.StartOn(t, c.Nodes[0], "--metrics-bind-address=:9080")
		labtest.WaitReady(t, agent)
		return c, agent
	}

	t.Run("link-local addresses of one pod", func(t *testing.T) {
		c, agent := start(t, false, "x/bad@1")
		bad := c.Hosts["x/bad"]
		link := linkOf(t, bad)
		crowd := &crowd{to: netip.MustParseAddrPort("[fe80::1]:9080")}
		for _, addr := range addAddrs(t, bad, netip.MustParsePrefix("fe80::bad:1/64"), 20) {
			crowd.open(t, bad, addr, link, perAddress)
		}
		check(t, c, agent, crowd)
	})
	t.Run("addresses of many pods", func(t *testing.T) {
		var names []string
		for i := range 16 {
			names = append(names, fmt.Sprintf("x/bad-%d@1", i))
		}
		c, agent := start(t, false, names...)
		crowd := &crowd{to: netip.AddrPortFrom(c.Hosts["node-1"].Addr(lab.IPv4), 9080)}
		for i := range 16 {
			crowd.open(t, c.Hosts[fmt.Sprintf("x/bad-%d", i)], netip.Addr{}, 0, perAddress)
		}
		check(t, c, agent, crowd)
	})
	t.Run("addresses of a bridge's networks", func(t *testing.T) {
		c, agent := start(t, true, "x/bad@1")
		bad := c.Hosts["x/bad"]
		for family, first := range map[lab.Family]netip.Prefix{
			lab.IPv4: netip.MustParsePrefix("10.244.1.100/24"),
			lab.IPv6: netip.MustParsePrefix("fd00:10:244:1::bad:1/64"),
		} {
			crowd := &crowd{to: netip.AddrPortFrom(c.Hosts["node-1"].Addr(family), 9080)}
			for _, addr := range addAddrs(t, bad, first, 80) {
				crowd.open(t, bad, addr, 0, 2)
			}
			check(t, c, agent, crowd)
		}
	})
	t.Run("addresses of a network that no Node has", func(t *testing.T) {
		c, agent := start(t, true, "x/bad@1")
		if _, err := c.Hosts["node-1"].Run(t.Context(), "", "ip", "addr", "add", "fd77::1/64", "dev", "cni0", "nodad"); err != nil {
			t.Fatal(err)
		}
		bad := c.Hosts["x/bad"]
		crowd := &crowd{to: netip.MustParseAddrPort("[fd77::1]:9080")}
		addrs := addAddrs(t, bad, netip.MustParsePrefix("fd77::bad:1/64"), 80)
		if err := labtest.Within(t, func() bool {
			crowd.open(t, bad, addrs[0], 0, 1)
			return labtest.Metrics(t, agent).Sum("netpol_http_connections_refused_total", "clients", "pods") > 0
		}); err != nil {
			t.Error("the network is not known to be one of pods")
		}
		for _, addr := range addrs {
			crowd.open(t, bad, addr, 0, 2)
		}
		check(t, c, agent, crowd)
	})
}
