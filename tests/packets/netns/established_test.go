package netns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// The parameters of this test.
const (
	pairPort, servicePort, sinkPort = 9000, 8000, 9001

	stallTime = 500 * time.Millisecond // of silence after data was sent
	passTime  = 30 * time.Second       // for passes over the table and TCP retransmissions
)

// pair is a TCP connection with both ends in the test.
type pair struct {
	name           string
	client, server net.Conn
}

// listenOn listens on a port of all addresses of a host.
func listenOn(t *testing.T, host *lab.Host, port int) net.Listener {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // after returning to the first namespace
	ownNamespace, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ownNamespace.Close()
	hostNamespace, err := os.Open(host.NetNS())
	if err != nil {
		t.Fatal(err)
	}
	defer hostNamespace.Close()
	if err := unix.Setns(int(hostNamespace.Fd()), unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
	if restoreErr := unix.Setns(int(ownNamespace.Fd()), unix.CLONE_NEWNET); restoreErr != nil {
		panic(restoreErr) // other tests would run on a thread in the wrong namespace
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

// openPair opens a connection from a host to an address of listener.
func (c *cluster) openPair(t *testing.T, from string, listener net.Listener, to netip.AddrPort) pair {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.ChangeTimeout)
	defer cancel()
	client, err := c.Hosts[from].Dial(ctx, lab.TCP, to)
	if err != nil {
		t.Fatalf("%s: %v", from, err)
	}
	t.Cleanup(func() { client.Close() })
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return pair{fmt.Sprintf("%s to %s", from, to), client, server}
}

// send sends one line from each end.
func (p pair) send(t *testing.T, word string) {
	for _, end := range []net.Conn{p.client, p.server} {
		if _, err := io.WriteString(end, word); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	}
}

// received expects the word at both ends.
func (p pair) received(t *testing.T, word string, within time.Duration) {
	for side, end := range map[string]net.Conn{"client": p.client, "server": p.server} {
		end.SetReadDeadline(time.Now().Add(within))
		got := make([]byte, len(word))
		if _, err := io.ReadFull(end, got); err != nil || string(got) != word {
			t.Errorf("%s: the %s received %q, %v, want %q", p.name, side, got, err, word)
		}
	}
}

// silent expects nothing at both ends.
func (p pair) silent(t *testing.T) {
	for side, end := range map[string]net.Conn{"client": p.client, "server": p.server} {
		end.SetReadDeadline(time.Now().Add(stallTime))
		got := make([]byte, 16)
		if n, err := end.Read(got); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the %s received %q, %v, want nothing", p.name, side, got[:n], err)
		}
	}
}

// each runs f for all pairs concurrently.
func each(pairs []pair, f func(pair)) {
	var wg sync.WaitGroup
	for _, p := range pairs {
		wg.Go(func() { f(p) })
	}
	wg.Wait()
}

// service makes the node translate both ends of connections to servicePort of the Service
// addresses for web.
func (c *cluster) service(t *testing.T, web *lab.Pod) []netip.AddrPort {
	t.Helper()
	vip4, vip6 := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")
	rules := fmt.Sprintf(`
table inet service {
	chain prerouting {
		type nat hook prerouting priority dstnat
		ip daddr %s tcp dport %d dnat ip to %s
		ip6 daddr %s tcp dport %d dnat ip6 to %s
	}
	chain postrouting {
		type nat hook postrouting priority srcnat
		ct status dnat masquerade
	}
}
`, vip4, servicePort, netip.AddrPortFrom(web.Addr(lab.IPv4), pairPort),
		vip6, servicePort, netip.AddrPortFrom(web.Addr(lab.IPv6), pairPort))
	if _, err := c.Nodes[0].Run(t.Context(), rules, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	return []netip.AddrPort{netip.AddrPortFrom(vip4, servicePort), netip.AddrPortFrom(vip6, servicePort)}
}

// connections are the connections of a test.
type connections struct {
	denied []pair // by the policy that follows
	spared []pair
	flow   net.Conn // sends UDP without an answer; also denied
	sink   *lab.Sink
}

// establish opens connections to x/web, directly and through its Service, connections from
// x/web, and connections with its own node.
func (c *cluster) establish(t *testing.T, vips []netip.AddrPort) (all connections) {
	t.Helper()
	listeners := make(map[string]net.Listener)
	for _, host := range []string{"x/web", "y/far", "node-1"} {
		listeners[host] = listenOn(t, c.Hosts[host], pairPort)
	}
	for _, vip := range vips {
		all.denied = append(all.denied, c.openPair(t, "y/near", listeners["x/web"], vip))
	}
	open := func(list *[]pair, from, to string) {
		for _, addr := range c.Addrs(t, to) {
			*list = append(*list, c.openPair(t, from, listeners[to], netip.AddrPortFrom(addr, pairPort)))
		}
	}
	open(&all.denied, "y/near", "x/web")
	open(&all.denied, "y/far", "x/web")
	open(&all.spared, "node-1", "x/web")
	open(&all.spared, "x/web", "y/far")
	open(&all.spared, "x/web", "node-1")

	var err error
	if all.sink, err = c.Hosts["x/web"].Sink(sinkPort); err != nil {
		t.Fatal(err)
	}
	all.flow, err = c.Hosts["y/far"].Dial(t.Context(), lab.UDP, netip.AddrPortFrom(c.Pods["x/web"].Addr(lab.IPv4), sinkPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { all.flow.Close() })
	return all
}

// goOn expects that data passes on all connections in both directions.
func (all connections) goOn(t *testing.T, when string) {
	t.Helper()
	each(slices.Concat(all.denied, all.spared), func(p pair) {
		p.send(t, when)
		p.received(t, when, labtest.ChangeTimeout)
	})
	all.flows(t, when)
}

// flows expects that a datagram arrives.
func (all connections) flows(t *testing.T, when string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.ChangeTimeout)
	defer cancel()

	before := all.sink.Received()
	err := lab.Poll(ctx, func() (bool, error) {
		_, err := io.WriteString(all.flow, when)
		return all.sink.Received() > before, err
	})
	if err != nil {
		t.Errorf("%s: no datagram arrives: %v", when, err)
	}
}

// stall expects that data sent on denied connections does not arrive, and that the other
// connections continue.
func (all connections) stall(t *testing.T, word string) {
	t.Helper()
	before := all.sink.Received()
	if _, err := io.WriteString(all.flow, word); err != nil {
		t.Error(err)
	}
	each(all.denied, func(p pair) {
		p.send(t, word)
		p.silent(t)
	})
	each(all.spared, func(p pair) {
		p.send(t, word)
		p.received(t, word, labtest.ChangeTimeout)
	})

	if got := all.sink.Received(); got != before {
		t.Errorf("%d datagrams arrived, want none", got-before)
	}
}

// passes returns how often the agent went over the table of connections.
func passes(m lab.Metrics) float64 {
	return m.Sum("netpol_conntrack_runs_total", "task", "pass", "result", "success")
}

// waitForPasses waits for a number of passes over the table.
func waitForPasses(t *testing.T, agent *lab.Agent, count float64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), passTime)
	defer cancel()
	if err := lab.Poll(ctx, func() (bool, error) { return passes(labtest.Metrics(t, agent)) >= count, nil }); err != nil {
		t.Fatalf("no pass over the connections: %v", err)
	}
}

// waitForBlocked waits until the agent has blocked a number of connections and has then
// completed a check of what changed: the current one or the next.
func waitForBlocked(t *testing.T, agent *lab.Agent, count float64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), passTime)
	defer cancel()

	checks := -1.0
	if err := lab.Poll(ctx, func() (bool, error) {
		m := labtest.Metrics(t, agent)
		done := m.Sum("netpol_conntrack_runs_total", "task", "check", "result", "success")
		if checks < 0 && m.Sum("netpol_conntrack_blocked_total") >= count {
			checks = done
		}
		return checks >= 0 && done > checks, nil
	}); err != nil {
		t.Fatalf("fewer than %v connections are blocked: %v", count, err)
	}
}

// fromY allows the pods of y to connect to those of x.
var fromY = labtest.Policy("x", "ingress", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: y}}}]}]}`)

// noIngress allows no ingress to x.
var noIngress = labtest.Policy("x", "ingress", `{podSelector: {}}`)

// TestEstablishedConnections opens connections that a policy allows, then denies, and then
// allows again.
func TestEstablishedConnections(t *testing.T) {
	labtest.SkipShort(t)
	for _, options := range [][]string{nil, {"--remember-verdicts=0"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) {
			c := newCluster(t, 2, "x/web@1 app=web", "y/near@1", "y/far@2")
			vips := c.service(t, c.Pods["x/web"])
			c.Apply(t, "policies", fromY)
			agent := c.Start(t, options...)[0]
			c.Expect(t, labtest.Yes("y/far", "x/web", "tcp/80"), labtest.No("node-2", "x/web", "tcp/80"))
			waitForPasses(t, agent, 2) // these passes do not find the change below
			all := c.establish(t, vips)
			all.goOn(t, "allowed")
			if len(options) > 0 { // another agent finds them
				if err := agent.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
				agent = c.StartOn(t, c.Nodes[0], options...)
				labtest.WaitReady(t, agent)
				waitForPasses(t, agent, 2)
				all.goOn(t, "allowed before")
			}

			before := labtest.Metrics(t, agent).Sum("netpol_conntrack_blocked_total")
			c.Replace(t, "policies", noIngress)
			c.Expect(t, labtest.No("y/far", "x/web", "tcp/80"), labtest.No("y/near", "x/web", "tcp/80"))
			waitForBlocked(t, agent, before+float64(len(all.denied)+1))
			all.stall(t, "blocked")

			c.Replace(t, "policies", fromY)
			each(all.denied, func(p pair) { p.received(t, "blocked", passTime) })
			all.goOn(t, "allowed again")
		})
	}
}
