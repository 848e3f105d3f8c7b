package netns

import (
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// denyNodes denies TCP port 80 of every node.
var denyNodes = labtest.Admin("nodes", `egress: [{name: nodes, action: Deny, to: [{nodes: {}}], ports: [{portNumber: {protocol: TCP, port: 80}}]}]`)

// TestAdminDenyOwnNode: an administrator can deny a pod its own node, a NetworkPolicy
// cannot. Packets to the own node are not queued if only a NetworkPolicy isolates the pod.
func TestAdminDenyOwnNode(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web", "x/db@1 app=db", "y/web@2 app=web")
	agent := c.Start(t, labtest.WithAdmin)[0]
	c.Apply(t, "isolated", labtest.Policy("x", "deny", `{podSelector: {}, policyTypes: [Egress]}`))
	c.Apply(t, "admin", denyNodes)
	c.Expect(t,
		labtest.No("x/web", "node-1", "tcp/80"), labtest.Yes("x/web", "node-1", "tcp/81"), labtest.Yes("x/web", "node-1", "udp/80"), labtest.Yes("x/web", "node-1", "icmp"),
		labtest.No("x/web", "node-2", "tcp/80"), labtest.No("y/web", "node-2", "tcp/80"), labtest.No("y/web", "node-1", "tcp/80"), labtest.Yes("y/web", "node-1", "tcp/81"),
		labtest.Yes("node-1", "x/web", "tcp/80"), labtest.Yes("node-1", "x/web", "icmp"),
		labtest.Yes("x/db", "node-1", "tcp/80"), labtest.No("x/db", "node-2", "tcp/81"))

	before := labtest.Steered(labtest.Metrics(t, agent))
	c.Expect(t, labtest.Yes("x/db", "node-1", "tcp/80"), labtest.Yes("x/db", "node-1", "udp/80"), labtest.Yes("node-1", "x/web", "udp/80"), labtest.Yes("node-2", "node-1", "tcp/80"))
	if after := labtest.Steered(labtest.Metrics(t, agent)); after != before {
		t.Errorf("%v packets were steered, want none", after-before)
	}
	c.Expect(t, labtest.Yes("x/web", "node-1", "tcp/81"))
	if after := labtest.Steered(labtest.Metrics(t, agent)); after == before {
		t.Error("no packet of a pod with an administrator's policy was steered")
	}
	if err := c.Manifests.Remove("admin"); err != nil {
		t.Fatal(err)
	}
	c.Expect(t, labtest.Yes("x/web", "node-1", "tcp/80"), labtest.No("x/web", "node-2", "tcp/80"))
}

// TestEstablishedConnectionsToTheOwnNode: they are blocked if an administrator denies them,
// but not if only a NetworkPolicy would.
func TestEstablishedConnectionsToTheOwnNode(t *testing.T) {
	labtest.SkipShort(t)
	c := newCluster(t, 1, "x/web@1 app=web", "x/db@1 app=db")
	agent := c.Start(t, labtest.WithAdmin)[0]
	listener := listenOn(t, c.Hosts["node-1"], pairPort)
	var denied, spared []pair
	for _, addr := range c.Addrs(t, "node-1") {
		denied = append(denied, c.openPair(t, "x/web", listener, netip.AddrPortFrom(addr, pairPort)))
		spared = append(spared, c.openPair(t, "x/db", listener, netip.AddrPortFrom(addr, pairPort)))
	}
	waitForPasses(t, agent, 2) // these passes do not find the change below
	before := labtest.Metrics(t, agent).Sum("netpol_conntrack_blocked_total")
	c.Apply(t, "isolated", labtest.Policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`))
	c.Apply(t, "admin", labtest.Admin("all", `egress: [{name: nodes, action: Deny, to: [{nodes: {}}]}]`))
	c.Expect(t, labtest.No("x/web", "node-1", "tcp/80"), labtest.No("x/db", "x/web", "tcp/80"), labtest.Yes("x/db", "node-1", "tcp/80"))
	waitForBlocked(t, agent, before+float64(len(denied)))
	each(denied, func(p pair) {
		p.send(t, "blocked")
		p.silent(t)
	})
	each(spared, func(p pair) {
		p.send(t, "go on")
		p.received(t, "go on", labtest.ChangeTimeout)
	})
	if err := c.Manifests.Remove("admin"); err != nil {
		t.Fatal(err)
	}
	each(denied, func(p pair) { p.received(t, "blocked", passTime) })
}
