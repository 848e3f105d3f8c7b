package attacks

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// poolPod starts a pod of node 2 with addresses that are not in the ranges of this node, and routes them
// there from node 1.
func poolPod(t *testing.T, c *labtest.Cluster, spec string, addrs ...string) {
	t.Helper()
	pod, routes := labtest.NewPod(spec), ""
	for _, a := range addrs {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a})
		for _, via := range c.Nodes[1].Addrs {
			if via.Is4() == netip.MustParseAddr(a).Is4() {
				routes += fmt.Sprintf("route add %s via %s\n", a, via)
			}
		}
	}
	pod.Status.Phase = corev1.PodRunning
	attached := c.Attach(t, pod)[0]
	if _, err := c.Nodes[0].Run(t.Context(), routes, "ip", "-batch", "-"); err != nil {
		t.Fatal(err)
	}
	c.Put(t, labtest.PodFile(attached.Name), attached.Object)
}

// stray is a pod of node 3, which is no host of the lab, with addresses outside of its ranges.
func stray(t *testing.T, c *labtest.Cluster, name string, addrs ...string) {
	t.Helper()
	pod := labtest.NewPod(name + "@3")
	pod.TypeMeta, pod.Status.Phase = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, corev1.PodRunning
	for _, a := range addrs {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a})
	}
	c.Put(t, labtest.PodFile(name), pod)
}

// TestPoolsOutsideOfRanges: NP-62. Pods have addresses of a second pool, of the range of a third node
// and of the range of the evaluating node, while other nodes use their ranges. Rules for their namespace
// apply to them, and more such pods on other nodes change nothing.
func TestPoolsOutsideOfRanges(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/web@1 app=web", "y/db@1", "y/far@2", "z/other@2")
	c.Put(t, "bad-node", badNode())
	poolPod(t, c, "y/pool@2", "10.9.0.5", "fd00:10:9::5")
	poolPod(t, c, "y/third@2", "10.244.3.5", "fd00:10:244:3::5")
	poolPod(t, c, "y/own@2", "10.244.1.77", "fd00:10:244:1::77")
	poolPod(t, c, "z/pool@2", "10.9.0.6", "fd00:10:9::6")
	agent := c.Start(t, labtest.WithAdmin)[0]
	named, others := []string{"y/db", "y/far", "y/pool", "y/third", "y/own"}, []string{"z/other", "z/pool"}
	expect := func(expectation func(from, to, what string) labtest.Expectation, pods []string) {
		t.Helper()
		for _, pod := range pods {
			c.Expect(t, expectation(pod, "x/web", "tcp/80"), expectation("x/web", pod, "udp/80"))
		}
	}
	strays := func(then func()) {
		t.Helper()
		then()
		stray(t, c, "z/stray", "10.9.7.7", "fd00:10:9::77")
		stray(t, c, "y/stray", "10.244.2.200", "fd00:10:244:2::c8")
		labtest.Until(t, agent, 10, func(m lab.Metrics) float64 { return m.Sum("netpol_objects", "kind", "Pod") })
		then()
		c.Manifests.Remove(labtest.PodFile("z/stray"))
		c.Manifests.Remove(labtest.PodFile("y/stray"))
	}
	c.Enforce(t, agent, "allow", labtest.Policy("x", "web", `
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{namespaceSelector: {matchLabels: {ns: y}}}]}]
  egress: [{to: [{namespaceSelector: {matchLabels: {ns: y}}}]}]`))
	strays(func() {
		t.Helper()
		expect(labtest.Yes, named)
		expect(labtest.No, others)
	})
	c.Manifests.Remove("allow")
	c.Enforce(t, agent, "deny", labtest.Admin("deny", `
  ingress: [{name: y, action: Deny, from: [{namespaces: {matchLabels: {ns: y}}}]}],
  egress: [{name: y, action: Deny, to: [{namespaces: {matchLabels: {ns: y}}}]}]`))
	strays(func() {
		t.Helper()
		expect(labtest.No, named)
		expect(labtest.Yes, others)
	})
}

// TestDisputedAddresses: NP-63. Two pods of other nodes claim one address. What is denied to one of them
// is denied at the address, it is counted, and the end of the dispute is followed at once.
func TestDisputedAddresses(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/web@1 app=web", "y/far@2")
	c.Put(t, "bad-node", badNode())
	poolPod(t, c, "y/pool@2", "10.9.0.5", "fd00:10:9::5")
	agent := c.Start(t, labtest.WithAdmin)[0]
	c.Enforce(t, agent, "deny", labtest.Admin("deny", `
  ingress: [{name: y, action: Deny, from: [{namespaces: {matchLabels: {ns: y}}}]}],
  egress: [{name: y, action: Deny, to: [{namespaces: {matchLabels: {ns: y}}}]}]`))
	denied := func(from string) {
		t.Helper()
		c.Expect(t, labtest.No(from, "x/web", "tcp/80"), labtest.No("x/web", from, "tcp/80"))
	}
	denied("y/pool")
	labtest.Enforced(t, agent, func() { stray(t, c, "z/bad", "10.9.0.5", "fd00:10:9::5") })
	denied("y/pool")
	metrics, err := agent.Metrics(t.Context())
	if err != nil || metrics.Sum("netpol_disputed_packets_total", "verdict", "drop") == 0 || metrics.Sum("netpol_address_conflicts", "kind", "other_pod") != 2 {
		t.Errorf("%v disputed packets, %v conflicts: %v", metrics.Sum("netpol_disputed_packets_total"), metrics.Sum("netpol_address_conflicts"), err)
	}
	labtest.Enforced(t, agent, func() { c.Manifests.Remove(labtest.PodFile("y/pool")) })
	c.Expect(t, labtest.Yes("y/pool", "x/web", "tcp/80"), labtest.Yes("x/web", "y/pool", "tcp/80"))
	// A claim to the address of a pod at home disputes nothing.
	labtest.Enforced(t, agent, func() { stray(t, c, "z/bad", c.Hosts["y/far"].Addrs[0].String(), c.Hosts["y/far"].Addrs[1].String()) })
	denied("y/far")
}

// TestAPoolThatMoves: NP-51, NP-62. The addresses of a pool go from one node to the other and back, and
// pods of other namespaces get them. The earlier pod is still shown, without an interface: each node
// decides by the pod to which it routes the addresses, also after a restart, and in both orders of the
// changes of the route and of the pod.
func TestAPoolThatMoves(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/web@1 app=web", "x/far@2 app=web")
	pool := addrs("10.9.0.5", "fd00:10:9::5")
	attach := func(spec string, to int) *corev1.Pod {
		t.Helper()
		pod := labtest.NewPod(spec)
		pod.Status.Phase = corev1.PodRunning
		for _, a := range pool {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
			script(t, c.Nodes[to].Host, fmt.Sprintf("ip route del %s || true", a))
		}
		return c.Attach(t, pod)[0].Object
	}
	route := func(from int, a netip.Addr) {
		t.Helper()
		script(t, c.Nodes[from].Host, fmt.Sprintf("ip route replace %s via %s", a, sameFamily(a, c.Nodes[1-from].Addrs)))
	}
	both := func(expectation func(from, to, what string) labtest.Expectation, pod string) {
		t.Helper()
		for _, web := range []string{"x/web", "x/far"} {
			c.Expect(t, expectation(pod, web, "tcp/80"), expectation(web, pod, "udp/80"))
		}
	}
	show(t, c, attach("y/pool@2", 1))
	route(0, pool[0])
	route(0, pool[1])
	agents := c.Start(t, labtest.WithAdmin)
	c.Apply(t, "deny", labtest.Admin("deny", `
  ingress: [{name: y, action: Deny, from: [{namespaces: {matchLabels: {ns: y}}}]}],
  egress: [{name: y, action: Deny, to: [{namespaces: {matchLabels: {ns: y}}}]}]`))
	both(labtest.No, "y/pool")

	removeHost(t, c, c.Pods["y/pool"])
	next := attach("z/next@1", 0)
	route(1, pool[0])
	route(1, pool[1])
	labtest.Enforced(t, agents[0], func() { labtest.Enforced(t, agents[1], func() { show(t, c, next) }) })
	both(labtest.Yes, "z/next")
	agents[1].Kill()
	labtest.WaitReady(t, c.StartOn(t, c.Nodes[1], labtest.WithAdmin))
	both(labtest.Yes, "z/next")
	c.Manifests.Remove(labtest.PodFile("y/pool"))

	removeHost(t, c, c.Pods["z/next"])
	back := attach("y/back@2", 1)
	labtest.Enforced(t, agents[0], func() { show(t, c, back) })
	for _, a := range pool {
		labtest.Enforced(t, agents[0], func() { route(0, a) })
	}
	both(labtest.No, "y/back")
}
