package netns

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
	"sigs.k8s.io/kube-network-policies/tests/packets/process"
)

// finish makes the node track count UDP connections of pod from, which have ended: those of a client of one
// DNS server, or of a crawler.
func (c *cluster) finish(t *testing.T, from netip.Addr, count int, crawler bool) {
	t.Helper()
	var lines strings.Builder
	for i := range count {
		to, port := "192.0.2.53", 1024+i%60000
		if from.Is6() {
			to = "2001:db8:53::53"
		}
		server := netip.MustParseAddr(to).AsSlice()
		server[len(server)-2] = byte(i / 60000)
		if crawler {
			server[len(server)-3], server[len(server)-2], server[len(server)-1] = byte(i>>16), byte(i>>8), byte(i)
		}
		dst, _ := netip.AddrFromSlice(server)
		fmt.Fprintf(&lines, "-A -t 600 -u SEEN_REPLY -s %s -d %s -r %[2]s -q %[1]s -p udp --sport %[3]d --dport 53 --reply-port-src 53 --reply-port-dst %[3]d\n", from, dst, port)
	}
	if out, err := c.Nodes[0].Run(t.Context(), lines.String(), "conntrack", "-R", "-"); err != nil {
		t.Fatalf("%v: %.200s", err, out)
	}
}

// stream is a flow of datagrams in one direction.
type stream struct {
	last    atomic.Int64  // when the last one arrived
	arrived chan struct{} // has an element if one has arrived
}

// stream sends a datagram every millisecond until the test ends, and gets answers if answered is set.
func (c *cluster) stream(t *testing.T, from, to string, addr netip.Addr, answered bool) *stream {
	t.Helper()
	s := &stream{arrived: make(chan struct{}, 1)}
	sink, err := c.Hosts[to].ListenPacket(netip.AddrPortFrom(addr, flowPort))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.Hosts[from].Dial(t.Context(), lab.UDP, netip.AddrPortFrom(addr, flowPort))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); conn.Close(); sink.Close() })
	go func() {
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			_, _ = conn.Write([]byte("stream"))
		}
	}()
	go func() {
		b := make([]byte, 16)
		for {
			_, client, err := sink.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if answered {
				_, _ = sink.WriteToUDPAddrPort(b, client)
			}
			s.last.Store(time.Now().UnixNano())
			select {
			case s.arrived <- struct{}{}:
			default:
			}
		}
	}()
	return s
}

// waitFor waits until datagrams arrive again, or until none does for stallTime, and returns when the last one
// arrived.
func (s *stream) waitFor(t *testing.T, flows bool) time.Time {
	t.Helper()
	const enough = 20
	timeout := time.After(labtest.ChangeTimeout)
	for n := 0; !flows || n < enough; {
		select {
		case <-s.arrived:
			n++
		case <-time.After(stallTime):
			if !flows {
				return time.Unix(0, s.last.Load())
			}
		case <-timeout:
			t.Fatalf("after %v the stream flows: %v", labtest.ChangeTimeout, !flows)
		}
	}
	return time.Unix(0, s.last.Load())
}

// crowd is a pod with a stream, and with many finished connections.
type crowd struct {
	*cluster
	count   int
	agent   *lab.Agent
	stream  *stream
	measure string        // part of the names of measurements
	cpu     time.Duration // that the agent had used when marks decided last
}

// report prints a measurement in the format of Go's benchmarks, for make bench.
func (c *crowd) report(name string, took time.Duration) {
	fmt.Printf("BenchmarkCrowd/%s%s 1 %d ns\n", name, c.measure, took.Nanoseconds())
}

// change applies a policy and measures how long it takes for the stream to flow, or to end.
func (c *crowd) change(t *testing.T, name, policy string, flows bool) {
	t.Helper()
	begin := time.Now()
	c.Replace(t, "policies", policy)
	c.report(name, c.stream.waitFor(t, flows).Sub(begin))
}

// deny applies a policy that denies the stream.
func (c *crowd) deny(t *testing.T, name, policy string) {
	t.Helper()
	c.change(t, name, policy, false)
}

// allow applies a policy, waits until marks decide about all connections again, and measures the agent's CPU
// time since they did so before the change that denied.
func (c *crowd) allow(t *testing.T, denied, policy string) {
	t.Helper()
	c.change(t, "allowed", policy, true)
	if err := labtest.Within(t, func() bool { return c.empty(t, "overrides") }); err != nil {
		t.Fatal(err)
	}
	used, err := process.CPUTime(c.agent.PID())
	if err != nil {
		t.Fatal(err)
	}
	c.report("cpu-"+denied, used-c.cpu)
	c.cpu = used
}

// empty reports whether a set of the first node has no elements.
func (c *cluster) empty(t *testing.T, set string) bool {
	out, err := c.Nodes[0].Run(t.Context(), "", "nft", "list", "set", "inet", "netpol-agent", set)
	return err == nil && !strings.Contains(out, "elements")
}

// start measures how long an agent takes from its start to end the stream, which policy denies.
func (c *crowd) start(t *testing.T, name, policy string) {
	t.Helper()
	c.agent.Kill()
	c.stream.waitFor(t, true)
	c.Replace(t, "policies", policy)
	begin := time.Now()
	c.agent, c.cpu = c.Start(t)[0], 0
	c.report(name, c.stream.waitFor(t, false).Sub(begin))
	labtest.WaitReady(t, c.agent)
}

// succeed gives the address of the pod to another one, and measures the slowest of the connections that
// it opens while the agent removes those of its predecessor.
func (c *crowd) succeed(t *testing.T, to netip.Addr) {
	t.Helper()
	next := labtest.NewPod("x/client@1 app=next")
	next.Status, next.UID = c.Pods["x/client"].Object.Status, "another"
	removed := func() bool {
		return labtest.Metrics(t, c.agent).Sum("netpol_conntrack_removed_total") > 0 && c.empty(t, "stale-families")
	}
	c.Put(t, labtest.PodFile("x/client"), next)
	var slowest time.Duration
	end := time.Now().Add(labtest.ChangeTimeout)
	for !removed() {
		begin := time.Now()
		if begin.After(end) {
			t.Fatal("the connections of the earlier pod are not removed")
		}
		conn, err := c.Hosts["x/client"].Dial(t.Context(), lab.TCP, netip.AddrPortFrom(to, 80))
		if err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(begin))
		conn.Close()
	}
	c.report("successor", slowest)
}

// A pod with very many finished connections has a live one, which does not go on after a Deny, and goes on
// once it is allowed again. Neither waits for the finished ones, nor does another pod that gets the address.
func TestADenyBesideManyFinishedConnections(t *testing.T) {
	labtest.SkipShort(t)
	counts := []int{0, 6000}
	if os.Getenv("HARD") != "" {
		counts = []int{0, 60_000, 250_000}
	}
	closed := labtest.Policy("x", "egress", `{podSelector: {}, policyTypes: [Egress]}`)
	allowed := labtest.Policy("x", "egress", `{podSelector: {}, policyTypes: [Egress], egress: [{}]}`)
	some := labtest.Policy("x", "egress", `{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{protocol: TCP, port: 443}]}]}`)
	for _, count := range counts {
		for _, peers := range []string{"one", "many"} {
			if count == 0 && peers == "many" {
				continue
			}
			for family := range 2 {
				name := fmt.Sprintf("/peers=%s/family=%d/entries=%d", peers, family, count)
				t.Run(name[1:], func(t *testing.T) {
					c := &crowd{cluster: newCluster(t, 1, "x/client@1 app=client", "y/server@1"), count: count, measure: name}
					c.agent = c.Start(t)[0]
					labtest.WaitReady(t, c.agent)
					server := c.Hosts["y/server"].Addrs[family]
					c.stream = c.cluster.stream(t, "x/client", "y/server", server, false)
					c.stream.waitFor(t, true)
					c.finish(t, c.Hosts["x/client"].Addrs[family], count, peers == "many")
					for _, deny := range []struct {
						name, policy string
						by           func(t *testing.T, name, policy string)
					}{{"first-some", some, c.deny}, {"closed", closed, c.deny}, {"some", some, c.deny}, {"start-closed", closed, c.start}, {"start-some", some, c.start}} {
						deny.by(t, deny.name, deny.policy)
						c.allow(t, deny.name, allowed)
					}
					c.succeed(t, server)
				})
			}
		}
	}
}

// The same for a stream that a flowtable forwards past all rules.
func TestADenyOfAnOffloadedStreamBesideManyFinishedConnections(t *testing.T) {
	labtest.SkipShort(t)
	many := 6000
	if os.Getenv("HARD") != "" {
		many = 250_000
	}
	for _, count := range []int{0, many} {
		for family := range 2 {
			name := fmt.Sprintf("/offloaded/family=%d/entries=%d", family, count)
			t.Run(name[1:], func(t *testing.T) {
				c := &crowd{cluster: newCluster(t, 1, "x/client@1 app=client", "y/server@1"), count: count, measure: name}
				needFlowtables(t, c.Nodes[0])
				flowtable(t, c.Nodes[0])
				c.agent = c.Start(t)[0]
				labtest.WaitReady(t, c.agent)
				server := c.Hosts["y/server"].Addrs[family]
				c.stream = c.cluster.stream(t, "x/client", "y/server", server, true)
				c.finish(t, c.Hosts["x/client"].Addrs[family], count, true)
				for _, deny := range [][2]string{{"closed", ""}, {"some", ", egress: [{ports: [{protocol: TCP, port: 443}]}]"}} {
					c.waitForOffload(t, server)
					c.deny(t, deny[0], labtest.Policy("x", "egress", "{podSelector: {}, policyTypes: [Egress]"+deny[1]+"}"))
					c.allow(t, deny[0], labtest.Policy("x", "egress", "{podSelector: {}, policyTypes: [Egress], egress: [{}]}"))
				}
			})
		}
	}
}

// waitForOffload waits until a flowtable forwards the stream to server.
func (c *crowd) waitForOffload(t *testing.T, server netip.Addr) {
	t.Helper()
	family := map[bool]string{true: "ipv4", false: "ipv6"}[server.Is4()]
	if err := labtest.Within(t, func() bool {
		list, err := c.Nodes[0].Run(t.Context(), "", "conntrack", "-L", "-f", family, "-p", "udp", "-d", server.String())
		return err == nil && strings.Contains(list, "[OFFLOAD]")
	}); err != nil {
		t.Fatal("the stream is not offloaded")
	}
}
