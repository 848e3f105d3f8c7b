package netns

import (
	"fmt"
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/lab"
)

// withAdmin enforces the policies of administrators that are used here.
const withAdmin = "--admin-network-policy"

// admin returns an AdminNetworkPolicy for the pods web of any namespace.
func admin(name, rules string) string {
	return fmt.Sprintf("---\napiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: %q}\n"+
		"spec: {priority: 10, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}, %s}\n", name, rules)
}

// denyNodes denies port 80 of every node by TCP.
var denyNodes = admin("nodes", `egress: [{name: nodes, action: Deny, to: [{nodes: {}}], ports: [{portNumber: {protocol: TCP, port: 80}}]}]`)

// steered is how many packets the kernel has sent to the agent.
func steered(m lab.Metrics) float64 { return m.Sum("netpol_steered_packets_total") }

// TestAdministratorsDenyTheOwnNode: NetworkPolicy cannot, and costs the pods it
// isolates nothing on their way to the node.
func TestAdministratorsDenyTheOwnNode(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web", "x/db@1 app=db", "y/web@2 app=web")
	agent := c.start(t, withAdmin)[0]
	c.apply(t, "isolated", policy("x", "deny", `{podSelector: {}, policyTypes: [Egress]}`))
	c.apply(t, "admin", denyNodes)
	c.expect(t,
		no("x/web", "node-1", "tcp/80"), yes("x/web", "node-1", "tcp/81"), yes("x/web", "node-1", "udp/80"), yes("x/web", "node-1", "icmp"),
		no("x/web", "node-2", "tcp/80"), no("y/web", "node-2", "tcp/80"), no("y/web", "node-1", "tcp/80"), yes("y/web", "node-1", "tcp/81"),
		yes("node-1", "x/web", "tcp/80"), yes("node-1", "x/web", "icmp"),
		yes("x/db", "node-1", "tcp/80"), no("x/db", "node-2", "tcp/81"))

	before := steered(metrics(t, agent))
	c.expect(t, yes("x/db", "node-1", "tcp/80"), yes("x/db", "node-1", "udp/80"), yes("node-1", "x/web", "udp/80"), yes("node-2", "node-1", "tcp/80"))
	if after := steered(metrics(t, agent)); after != before {
		t.Errorf("%v packets were steered, want none", after-before)
	}
	c.expect(t, yes("x/web", "node-1", "tcp/81"))
	if after := steered(metrics(t, agent)); after == before {
		t.Error("no packet of a pod concerned was steered")
	}
	if err := c.manifests.Remove("admin"); err != nil {
		t.Fatal(err)
	}
	c.expect(t, yes("x/web", "node-1", "tcp/80"), no("x/web", "node-2", "tcp/80"))
}

// TestAServiceMayBeTheOwnNode has a host-network pod of the node behind a
// Service: an administrator's policy is about what is behind it.
func TestAServiceMayBeTheOwnNode(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "x/db@1 app=db")
	node := c.Nodes[0]
	const vip4, vip6 = "10.96.0.10", "fd00:10:96::10"
	proxy := fmt.Sprintf(`
table inet service {
	chain prerouting {
		type nat hook prerouting priority dstnat
		ip daddr %s meta l4proto { tcp, udp } th dport 8000 dnat ip to %s
		ip6 daddr %s meta l4proto { tcp, udp } th dport 8000 dnat ip6 to %s
	}
}
`, vip4, netip.AddrPortFrom(node.Addr(lab.IPv4), 80), vip6, netip.AddrPortFrom(node.Addr(lab.IPv6), 80))
	if _, err := node.Run(t.Context(), proxy, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	c.start(t, withAdmin)
	c.apply(t, "admin", denyNodes)
	for _, vip := range []string{vip4, vip6} {
		c.expect(t, no("x/web", vip, "tcp/8000"), yes("x/web", vip, "udp/8000"), yes("x/db", vip, "tcp/8000"))
	}
}

// TestEstablishedConnectionsToTheOwnNode are cut where an administrator has come
// to deny them, and where only a NetworkPolicy would they are not.
func TestEstablishedConnectionsToTheOwnNode(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "x/db@1 app=db")
	agent := c.start(t, withAdmin, "--cut-established")[0]
	listener := listenOn(t, c.hosts["node-1"], pairPort)
	var denied, spared []pair
	for _, addr := range c.addrs(t, "node-1") {
		denied = append(denied, c.openPair(t, "x/web", listener, netip.AddrPortFrom(addr, pairPort)))
		spared = append(spared, c.openPair(t, "x/db", listener, netip.AddrPortFrom(addr, pairPort)))
	}
	before := passes(metrics(t, agent))
	c.apply(t, "isolated", policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`))
	c.apply(t, "admin", admin("all", `egress: [{name: nodes, action: Deny, to: [{nodes: {}}]}]`))
	c.expect(t, no("x/web", "node-1", "tcp/80"), no("x/db", "x/web", "tcp/80"), yes("x/db", "node-1", "tcp/80"))
	waitForPasses(t, agent, before+2)
	each(denied, func(p pair) {
		p.send(t, "cut")
		p.silent(t)
	})
	each(spared, func(p pair) {
		p.send(t, "go on")
		p.received(t, "go on", changeTimeout)
	})
	if err := c.manifests.Remove("admin"); err != nil {
		t.Fatal(err)
	}
	each(denied, func(p pair) { p.received(t, "cut", passTime) })
}
