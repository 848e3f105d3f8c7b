package netns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/lab"
)

// onlyDB isolates the pods web of x: they accept the pods db of any namespace.
var onlyDB = policy("x", "only-db", `
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}]}]`)

// TestService has the rules of a Service proxy beside ours: a virtual address is
// the pod behind it in both directions, and the client is still the client where
// the proxy hides it. A pod reaches itself through its Service.
func TestService(t *testing.T) {
	// Where UDP is judged makes no difference.
	for _, option := range []string{"--dns-race-workaround=false", "--dns-race-workaround=true"} {
		t.Run(option, func(t *testing.T) { testService(t, option) })
	}
}

func testService(t *testing.T, option string) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	const vip4, vip6 = "10.96.0.10", "fd00:10:96::10"
	web := c.pods["x/web"]
	proxy := fmt.Sprintf(`
table inet service {
	chain prerouting {
		type nat hook prerouting priority dstnat
		ip daddr %s th dport 8000 meta l4proto { tcp, udp } dnat ip to %s:80
		ip6 daddr %s th dport 8000 meta l4proto { tcp, udp } dnat ip6 to [%s]:80
	}
	chain postrouting {
		type nat hook postrouting priority srcnat
		ct status dnat masquerade
	}
}
`, vip4, web.Addr(lab.IPv4), vip6, web.Addr(lab.IPv6))
	if _, err := c.Nodes[0].Run(t.Context(), proxy, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	c.start(t, option)
	c.apply(t, "policies", onlyDB+policy("y", "out", `
  podSelector: {}
  policyTypes: [Egress]
  egress: [{to: [{namespaceSelector: {matchLabels: {ns: x}}}], ports: [{port: 80}]}]`)+
		policy("x", "out", `{podSelector: {}, policyTypes: [Egress]}`))
	for _, vip := range []string{vip4, vip6} {
		c.expect(t,
			yes("y/db", vip, "tcp/8000"), no("y/web", vip, "tcp/8000"), no("y/db", vip, "udp/8000"),
			yes("x/web", vip, "tcp/8000"), yes("x/web", vip, "udp/8000"))
	}
}

// TestNeighbourDiscoveryPassesADenyAll takes away what nodes and pods know of
// their neighbours: they have to ask again while everything is denied.
func TestNeighbourDiscoveryPassesADenyAll(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web", "x/db@1 app=db", "y/db@2 app=db")
	c.start(t)
	c.apply(t, "policies", policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`)+onlyDB)
	c.expect(t, no("x/db", "x/web", "tcp/80"), no("y/db", "x/db", "tcp/80"), yes("y/db", "x/web", "tcp/80"))
	for _, host := range c.hosts {
		if _, err := host.Run(t.Context(), "", "ip", "-6", "neigh", "flush", "all"); err != nil {
			t.Fatal(err)
		}
	}
	c.expect(t, yes("y/db", "x/web", "tcp/80"), yes("node-1", "x/db", "icmp"), no("x/db", "x/web", "tcp/80"))
}

// TestTheOwnNodeNeedsNoRoot: kubelets and other probers are told by the address
// they send from, not by their user.
func TestTheOwnNodeNeedsNoRoot(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web")
	c.start(t)
	c.apply(t, "policies", policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`))
	c.expect(t, no("node-2", "x/web", "tcp/80"), yes("node-1", "x/web", "tcp/80"))
	for _, user := range []string{"0", "65534"} {
		for _, addr := range c.addrs(t, "x/web") {
			const read = `read -t 2 name < /dev/tcp/$0/80 && echo "$name"`
			got, err := c.hosts["node-1"].Run(t.Context(), "", "setpriv", "--reuid", user, "--clear-groups", "timeout", "2", "bash", "-c", read, addr.String())
			if err != nil || strings.TrimSpace(got) != "x/web" {
				t.Errorf("user %s to %s: %q, %v", user, addr, got, err)
			}
			got, err = c.hosts["node-2"].Run(t.Context(), "", "setpriv", "--reuid", user, "--clear-groups", "timeout", "0.3", "bash", "-c", read, addr.String())
			if err == nil {
				t.Errorf("user %s of another node to %s: %q, want nothing", user, addr, got)
			}
		}
	}
}

// TestAHostNetworkPodIsItsNode: neither its labels nor its namespace admit the
// node's traffic, and no policy isolates it.
func TestAHostNetworkPodIsItsNode(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web", "y/db@2 app=db")
	object := newPod("x/agent@2 app=db")
	object.Spec.HostNetwork = true
	object.Status.Phase = corev1.PodRunning
	for _, addr := range c.hosts["node-2"].Addrs {
		object.Status.PodIPs = append(object.Status.PodIPs, corev1.PodIP{IP: addr.String()})
	}
	c.put(t, "host-network", object)
	c.start(t)
	c.apply(t, "policies", onlyDB+policy("x", "deny-db", `{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress, Egress]}`))
	c.expect(t, no("node-2", "x/web", "tcp/80"), yes("y/db", "x/web", "tcp/80"),
		yes("y/db", "node-2", "tcp/80"), yes("node-1", "node-2", "udp/80"))
}

// TestANewPodIsNeverOpen gives a pod its network before anyone is told of it:
// while a policy isolates any pod, it may be one of those.
func TestANewPodIsNeverOpen(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	agent := c.start(t)[0]
	c.apply(t, "policies", onlyDB)
	c.expect(t, no("y/web", "x/web", "tcp/80"), yes("y/db", "x/web", "tcp/80"))

	unknown := func(m lab.Metrics) float64 { return m.Sum(failures, "failure", "unknown_pod", "verdict", "drop") }
	before := unknown(metrics(t, agent))
	pods := c.attach(t, newPod("x/new@1 app=web"), newPod("z/new@1 app=web"))
	c.expect(t, no("y/web", "x/new", "tcp/80"), no("y/db", "x/new", "udp/80"), no("y/db", "z/new", "tcp/80"))
	if after := until(t, agent, before+1, unknown); after <= before {
		t.Errorf("drops of unknown pods went from %v to %v, want more", before, after)
	}
	for _, pod := range pods {
		c.put(t, podFile(pod.Name), pod.Object)
	}
	c.expect(t, yes("y/db", "x/new", "tcp/80"), yes("y/web", "z/new", "tcp/80"), no("y/web", "x/new", "tcp/80"))
}

// TestDenialsAreAboutNewPodsOfOtherNodes (CN-35): nobody reaches a pod of another
// node that he may be denied, nor is he reached by it, before it is told who it is.
func TestDenialsAreAboutNewPodsOfOtherNodes(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web", "z/db@2")
	c.start(t, withAdmin)
	known := func(pods []*lab.Pod) {
		for _, pod := range pods {
			c.put(t, podFile(pod.Name), pod.Object)
		}
	}

	c.apply(t, "egress", admin("egress", `egress: [{name: z, action: Deny, to: [{namespaces: {matchLabels: {ns: z}}}], ports: [{portNumber: {protocol: TCP, port: 80}}]}]`))
	c.expect(t, no("x/web", "z/db", "tcp/80"), yes("x/web", "z/db", "tcp/81"))
	pods := c.attach(t, newPod("y/new@2"), newPod("z/new@2"))
	c.expect(t, no("x/web", "y/new", "tcp/80"), no("x/web", "z/new", "tcp/80"), yes("x/web", "y/new", "tcp/81"))
	known(pods)
	c.expect(t, yes("x/web", "y/new", "tcp/80"), no("x/web", "z/new", "tcp/80"))

	c.replace(t, "egress", admin("ingress", `ingress: [{name: z, action: Deny, from: [{namespaces: {matchLabels: {ns: z}}}]}]`))
	c.expect(t, yes("x/web", "z/db", "tcp/80"), no("z/db", "x/web", "tcp/80"))
	pods = c.attach(t, newPod("y/late@2"), newPod("z/late@2"))
	c.expect(t, no("y/late", "x/web", "tcp/80"), no("z/late", "x/web", "tcp/80"), yes("node-2", "x/web", "tcp/80"), yes("node-2", "y/late", "tcp/80"))
	known(pods)
	c.expect(t, yes("y/late", "x/web", "tcp/80"), no("z/late", "x/web", "tcp/80"), yes("node-2", "x/web", "tcp/80"))
}

// TestAnUnknownPodPassesWhereTheOperatorSaysSo, after it was waited for.
func TestAnUnknownPodPassesWhereTheOperatorSaysSo(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	c.start(t, "--fail-open-unknown-packet")
	c.apply(t, "policies", onlyDB)
	c.attach(t, newPod("x/new@1 app=web"))
	c.expect(t, no("y/web", "x/web", "tcp/80"), yes("y/db", "x/web", "tcp/80"))
	web := c.hosts["y/web"]
	for _, addr := range c.addrs(t, "x/new") {
		answer, err := web.Probe(t.Context(), lab.UDP, netip.AddrPortFrom(addr, 80), 5*time.Second)
		if err != nil || answer.Outcome != lab.Connected {
			t.Errorf("to %s: %s, %v", addr, answer.Outcome, err)
		}
	}
}

// TestAnAddressBelongsToItsLatestPod gives the address of a pod that ended, and
// whose object is still there, to a pod with other labels.
func TestAnAddressBelongsToItsLatestPod(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/old@1 app=db", "y/web@1 app=web")
	c.start(t)
	c.apply(t, "policies", onlyDB)
	c.expect(t, yes("y/old", "x/web", "tcp/80"), no("y/web", "x/web", "tcp/80"))

	old := c.pods["y/old"]
	if err := c.Remove(t.Context(), old.Host); err != nil {
		t.Fatal(err)
	}
	old.Object.Status.Phase = corev1.PodSucceeded
	c.put(t, podFile("y/old"), old.Object)
	next := newPod("y/next@1 app=web")
	next.Status.PodIPs, next.Status.Phase = old.Object.Status.PodIPs, corev1.PodRunning
	c.put(t, podFile("y/next"), next)
	c.attach(t, next)
	c.expect(t, no("y/next", "x/web", "tcp/80"), yes("y/next", "y/web", "tcp/80"))

	if err := c.manifests.Remove(podFile("y/old")); err != nil {
		t.Fatal(err)
	}
	next.Labels["app"] = "db"
	c.put(t, podFile("y/next"), next)
	c.expect(t, yes("y/next", "x/web", "tcp/80"), no("y/web", "x/web", "tcp/80"))
}
