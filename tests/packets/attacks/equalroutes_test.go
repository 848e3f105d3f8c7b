package attacks

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// TestEqualRoutesToTwoPods: the node sends what is for an address to one of two pods, by equal routes. What
// reaches a pod is decided by the policies of that pod, and connections that are denied for both end.
func TestEqualRoutesToTwoPods(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/bad@1 app=bad", "x/good@1 app=good", "z/peer@2")
	shared := addrs("198.51.100.7", "2001:db8:99::7")
	bad, good, peer := c.Hosts["x/bad"], c.Hosts["x/good"], c.Hosts["z/peer"]
	looseFilter(t, c.Nodes[0])
	for _, addr := range shared {
		to := netip.PrefixFrom(addr, addr.BitLen())
		for _, pod := range []*lab.Host{bad, good} {
			script(t, pod, fmt.Sprintf("ip addr add %s dev lo nodad || ip addr add %[1]s dev lo", to))
		}
		script(t, c.Nodes[0].Host, fmt.Sprintf("ip route replace %s nexthop via %s nexthop via %s", to, sameFamily(addr, bad.Addrs), sameFamily(addr, good.Addrs)))
		script(t, c.Nodes[1].Host, fmt.Sprintf("ip route replace %s via %s", to, sameFamily(addr, c.Nodes[0].Addrs)))
	}
	script(t, c.Nodes[0].Host, "for f in /proc/sys/net/ipv[46]/fib_multipath_hash_policy; do echo 1 >$f; done") // by ports
	for _, pod := range []*lab.Host{bad, good} {
		own := pod.Addrs
		pod.Addrs = shared
		if err := pod.Serve(vipPort); err != nil {
			t.Fatal(err)
		}
		pod.Addrs = own
	}
	agent := c.Start(t)[0]
	expect := func(what string, names ...string) {
		t.Helper()
		for _, addr := range shared {
			for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
				var got string
				waitFor(t, func() bool {
					got = whoAnswers(t, peer, proto, netip.AddrPortFrom(addr, vipPort))
					return got == strings.Join(names, " ")
				}, func() string {
					return fmt.Sprintf("%s: %v at %v is answered by %q, want %q", what, proto, addr, got, names)
				})
			}
		}
	}
	isolated := func(app string) string {
		return labtest.Policy("x", "isolated", "{podSelector: {"+app+"}, policyTypes: [Ingress, Egress]}")
	}
	expect("nothing is selected", "x/bad", "x/good")
	var early []net.Conn
	for range 8 {
		for _, addr := range shared {
			conn, err := peer.Dial(t.Context(), lab.TCP, netip.AddrPortFrom(addr, vipPort))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			early = append(early, conn)
			waitFor(t, func() bool { return goesOn(conn) }, func() string { return "a connection does not begin" })
		}
	}
	c.Enforce(t, agent, "policies", isolated("matchLabels: {app: bad}"))
	expect("one is isolated", "x/good")
	for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
		for _, addr := range shared {
			answered(t, true, []question{{good, proto, addr, netip.AddrPortFrom(sameFamily(addr, peer.Addrs), 80)}})
			answered(t, false, []question{{bad, proto, addr, netip.AddrPortFrom(sameFamily(addr, peer.Addrs), 80)}})
		}
	}
	agent.Kill()
	c.Apply(t, "policies", isolated(""))
	agent = c.StartOn(t, c.Nodes[0])
	labtest.WaitReady(t, agent)
	expect("both are isolated, after a restart")
	waitFor(t, func() bool { return !slices.ContainsFunc(early, goesOn) }, func() string { return "a connection that is denied for both goes on" })
	c.Enforce(t, agent, "policies", isolated("matchLabels: {app: good}"))
	expect("the other one is isolated", "x/bad")
}

// goesOn reports whether a server that echoes answers.
func goesOn(conn net.Conn) bool {
	conn.SetDeadline(time.Now().Add(labtest.Silence))
	if _, err := conn.Write([]byte("again")); err != nil {
		return false
	}
	_, err := conn.Read(make([]byte, 64))
	return err == nil
}

// whoAnswers returns the sorted names of the servers that answer 32 questions.
func whoAnswers(t *testing.T, client *lab.Host, proto lab.Proto, to netip.AddrPort) string {
	t.Helper()
	var mu sync.Mutex
	found := map[string]bool{}
	var asked sync.WaitGroup
	for range 32 {
		asked.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), labtest.Silence)
			defer cancel()
			conn, err := client.Dial(ctx, proto, to)
			if err != nil {
				return
			}
			defer conn.Close()
			deadline, _ := ctx.Deadline()
			conn.SetDeadline(deadline)
			name := make([]byte, 64)
			_, err = conn.Write([]byte("name?"))
			n, err2 := conn.Read(name)
			if err == nil && err2 == nil {
				first, _, _ := strings.Cut(string(name[:n]), "\n")
				mu.Lock()
				found[first] = true
				mu.Unlock()
			}
		})
	}
	asked.Wait()
	return strings.Join(slices.Sorted(maps.Keys(found)), " ")
}

// TestCopiesForAnIsolatedPod: rules of the node send copies of packets to a pod (TEE). They are decided as
// for this pod, whoever their destination is.
func TestCopiesForAnIsolatedPod(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/web@1 app=web", "y/client@1", "y/near@1", "y/far@2")
	web := c.Hosts["x/web"]
	for _, a := range web.Addrs {
		iptables := map[bool]string{true: "iptables-nft", false: "ip6tables-nft"}[a.Is4()]
		script(t, c.Nodes[0].Host, fmt.Sprintf("%s -t mangle -A PREROUTING -p udp --dport %d -j TEE --gateway %s", iptables, oneWayPort, a))
	}
	copies, err := web.Capture(func(packet []byte) bool { return labtest.IsFrom(packet, c.Hosts["y/client"]) })
	if err != nil {
		t.Fatal(err)
	}
	agent := c.Start(t)[0]
	for _, to := range []string{"y/far", "y/near"} {
		if _, err := c.Hosts[to].Sink(oneWayPort); err != nil {
			t.Fatal(err)
		}
		// The destination, if it is selected, too, allows what it gets.
		for _, selected := range []string{"", labtest.Policy("y", "near", "{podSelector: {}, ingress: [{}]}")} {
			for _, rules := range []string{"ingress: [{}]", "ingress: []", "ingress: [{}, {}]"} {
				c.Enforce(t, agent, "policies", selected+labtest.Policy("x", "web", "{podSelector: {}, policyTypes: [Ingress], "+rules+"}"))
				for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
					for range 3 {
						copyArrives(t, c, agent, copies, netip.AddrPortFrom(c.Hosts[to].Addr(family), oneWayPort), rules != "ingress: []")
					}
				}
			}
		}
	}
}

// copyArrives sends a datagram from y/client, and expects that its copy arrives at x/web, or is denied.
func copyArrives(t *testing.T, c *labtest.Cluster, agent *lab.Agent, copies *lab.Capture, to netip.AddrPort, arrives bool) {
	t.Helper()
	before, denied := copies.Count(), labtest.Denied(labtest.Metrics(t, agent))
	conn, err := c.Hosts["y/client"].Dial(t.Context(), lab.UDP, to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("copied")); err != nil {
		t.Fatal(err)
	}
	if arrives {
		waitFor(t, func() bool { return copies.Count() > before }, func() string { return fmt.Sprintf("no copy of a datagram to %v arrives", to) })
		return
	}
	labtest.Until(t, agent, denied+1, labtest.Denied)
	if copies.Count() != before {
		t.Errorf("a copy of a datagram to %v arrives at an isolated pod", to)
	}
}
