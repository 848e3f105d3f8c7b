package attacks

import (
	"fmt"
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// allowSources annotates a namespace with the sources of packets that its pods may forward,
// none if empty.
func allowSources(t *testing.T, c *labtest.Cluster, namespace, sources string) {
	t.Helper()
	ns := lab.NewNamespace(namespace, nil)
	if sources != "" {
		ns.Annotations = map[string]string{"kube-network-policies.x-k8s.io/forwarded-sources": sources}
	}
	c.Put(t, "namespace-"+namespace, ns)
}

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// TestForwardedSources: FW-1 to FW-4. Pods of namespaces that allow sources can forward
// packets from these and forge no others. Their neighbours, and pods of the other such
// namespace, cannot use the sources.
func TestForwardedSources(t *testing.T) {
	c := labtest.NewCluster(t, 2, "v/router@1", "w/proxy@1", "y/neighbour@1", "x/strict@1", "z/sink@2")
	looseFilter(t, c.Nodes[0])
	allowSources(t, c, "v", "")
	allowSources(t, c, "w", "")
	router, proxy, neighbour, target := c.Hosts["v/router"], c.Hosts["w/proxy"], c.Hosts["y/neighbour"], c.Hosts["z/sink"]
	ofV, ofW := addrs("192.0.2.7", "2001:db8:7::7"), addrs("198.51.100.7", "2001:db8:8::7")
	forged := addrs("203.0.113.7", "2001:db8:9::7")
	for _, name := range []string{"y/neighbour", "w/proxy", "z/sink", "node-1", "node-2"} {
		forged = append(forged, c.Addrs(t, name)...)
	}

	arrived := sink(t, target)
	agent := c.Start(t)[0]
	c.Enforce(t, agent, "policies", labtest.Policy("x", "strict", `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/25}}]}]}`))
	c.Expect(t, labtest.Yes("v/router", "z/sink", "udp/80"), labtest.Yes("w/proxy", "z/sink", "udp/80"))
	dropped := forgedSources(labtest.Metrics(t, agent))
	delivered := arrived.Count()
	expect := func(what string, passed, refused int) {
		t.Helper()
		delivered += passed
		dropped += float64(refused)
		if got := labtest.Until(t, agent, dropped, forgedSources); got != dropped {
			t.Errorf("%s: %v packets were dropped, want %v", what, got, dropped)
		}
		waitFor(t, func() bool { return arrived.Count() >= delivered }, func() string {
			return fmt.Sprintf("%s: %d packets arrive, want %d", what, arrived.Count(), delivered)
		})

		if n := arrived.Count(); n != delivered {
			t.Errorf("%s: %d packets arrive, want %d", what, n, delivered)
		}
	}
	expect("no namespace allows sources", 0, sendFrom(t, router, target, ofV))

	labtest.Enforced(t, agent, func() { allowSources(t, c, "v", "192.0.2.0/24,2001:db8:7::/64,2001:db8::1/32") })
	labtest.Enforced(t, agent, func() { allowSources(t, c, "w", "198.51.100.0/24,2001:db8:8::/64") })
	m := labtest.Metrics(t, agent)
	if n := m.Sum("netpol_forwarding_pods", "state", "allowed"); n != 2 {
		t.Errorf("%v pods may forward, want 2", n)
	}
	if n := m.Sum("netpol_findings"); n != 1 {
		t.Errorf("%v findings, want one about the prefix with host bits", n)
	}
	expect("what its namespace allows", sendFrom(t, router, target, ofV)+sendFrom(t, proxy, target, ofW), 0)
	expect("what another namespace allows", 0, sendFrom(t, router, target, ofW)+sendFrom(t, proxy, target, ofV))
	expect("what no namespace allows", 0, sendFrom(t, router, target, forged))
	expect("a pod of another namespace", 0, sendFrom(t, neighbour, target, ofV)+sendFrom(t, neighbour, target, ofW))

	// Policies evaluate a forwarded packet by its source address.
	strict := c.Hosts["x/strict"]
	admitted := sink(t, strict)
	before := labtest.Denied(labtest.Metrics(t, agent))
	sendFrom(t, router, strict, addrs("192.0.2.200", "2001:db8:7::7"))
	if got := labtest.Until(t, agent, before+2, labtest.Denied) - before; got != 2 {
		t.Errorf("%v forwarded packets are denied, want 2", got)
	}
	sendFrom(t, router, strict, addrs("192.0.2.7"))
	waitFor(t, func() bool { return admitted.Count() == 1 }, func() string {
		return fmt.Sprintf("%d forwarded packets are allowed, want 1", admitted.Count())
	})

	labtest.Enforced(t, agent, func() { allowSources(t, c, "v", "") })
	expect("no longer allowed", sendFrom(t, proxy, target, ofW), sendFrom(t, router, target, ofV))
}

// TestPodsAtABridgeDoNotForward: pods of a bridge share its interface, so none of them may
// forward, and the agent reports it.
func TestPodsAtABridgeDoNotForward(t *testing.T) {
	c := labtest.NewCluster(t, 2, "v/router@1", "x/bad@1", "z/sink@2")
	labtest.BridgePods(t, c)
	looseFilter(t, c.Nodes[0])
	allowSources(t, c, "v", "192.0.2.0/24,2001:db8:7::/64")
	arrived := sink(t, c.Hosts["z/sink"])
	agent := c.Start(t)[0]
	c.Enforce(t, agent, "policies", isolateX)
	refused := func(m lab.Metrics) float64 { return m.Sum("netpol_forwarding_pods", "state", "refused") }
	if n := labtest.Until(t, agent, 1, refused); n != 1 {
		t.Errorf("%v pods are refused, want 1", n)
	}

	before := forgedSources(labtest.Metrics(t, agent))
	sources := addrs("192.0.2.7", "2001:db8:7::7")
	want := float64(sendFrom(t, c.Hosts["v/router"], c.Hosts["z/sink"], sources) + sendFrom(t, c.Hosts["x/bad"], c.Hosts["z/sink"], sources))
	if got := labtest.Until(t, agent, before+want, forgedSources) - before; got != want {
		t.Errorf("%v packets were dropped, want %v", got, want)
	}
	if n := arrived.Count(); n != 0 {
		t.Errorf("%d packets arrive", n)
	}
}
