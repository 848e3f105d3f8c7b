package netns

import (
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// onlyDB isolates the pods web of x, which accept only the pods db of any namespace.
var onlyDB = labtest.Policy("x", "only-db", `
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}]}]`)

// TestDenyAllAllowsNeighbourDiscovery flushes the neighbour caches of nodes and pods, which
// must be filled again while everything is denied.
func TestDenyAllAllowsNeighbourDiscovery(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web", "x/db@1 app=db", "y/db@2 app=db")
	c.Start(t)
	c.Apply(t, "policies", labtest.Policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`)+onlyDB)
	c.Expect(t, labtest.No("x/db", "x/web", "tcp/80"), labtest.No("y/db", "x/db", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
	for _, host := range c.Hosts {
		if _, err := host.Run(t.Context(), "", "ip", "-6", "neigh", "flush", "all"); err != nil {
			t.Fatal(err)
		}
	}
	c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.Yes("node-1", "x/db", "icmp"), labtest.No("x/db", "x/web", "tcp/80"))
}

// TestOwnNodeNeedsNoRoot: kubelets and other probers are recognised by their source
// address, not by their user.
func TestOwnNodeNeedsNoRoot(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web")
	c.Start(t)
	c.Apply(t, "policies", labtest.Policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`))
	c.Expect(t, labtest.No("node-2", "x/web", "tcp/80"), labtest.Yes("node-1", "x/web", "tcp/80"))
	for _, user := range []string{"0", "65534"} {
		for _, addr := range c.Addrs(t, "x/web") {
			const read = `read -t 20 name < /dev/tcp/$0/80 && echo "$name"`
			got, err := c.Hosts["node-1"].Run(t.Context(), "", "setpriv", "--reuid", user, "--clear-groups", "timeout", "20", "bash", "-c", read, addr.String())
			if err != nil || strings.TrimSpace(got) != "x/web" {
				t.Errorf("user %s to %s: %q, %v", user, addr, got, err)
			}
			got, err = c.Hosts["node-2"].Run(t.Context(), "", "setpriv", "--reuid", user, "--clear-groups", "timeout", "0.3", "bash", "-c", read, addr.String())
			if err == nil {
				t.Errorf("user %s of another node to %s: %q, want nothing", user, addr, got)
			}
		}
	}
}

// TestNewPodIsNeverOpen gives a pod its network before its object exists. While a policy
// isolates any pod, the unknown pod may be one of them.
func TestNewPodIsNeverOpen(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	agent := c.Start(t)[0]
	c.Apply(t, "policies", onlyDB)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))

	unknown := func(m lab.Metrics) float64 { return m.Sum(failures, "failure", "unknown_pod", "verdict", "drop") }
	before := unknown(labtest.Metrics(t, agent))
	pods := c.Attach(t, labtest.NewPod("x/new@1 app=web"), labtest.NewPod("z/new@1 app=web"))
	c.Expect(t, labtest.No("y/web", "x/new", "tcp/80"), labtest.No("y/db", "x/new", "udp/80"), labtest.No("y/db", "z/new", "tcp/80"))
	if after := labtest.Until(t, agent, before+1, unknown); after <= before {
		t.Errorf("drops of unknown pods went from %v to %v, want more", before, after)
	}
	for _, pod := range pods {
		c.Put(t, labtest.PodFile(pod.Name), pod.Object)
	}
	c.Expect(t, labtest.Yes("y/db", "x/new", "tcp/80"), labtest.Yes("y/web", "z/new", "tcp/80"), labtest.No("y/web", "x/new", "tcp/80"))
}

// TestAdminDenyHoldsUnknownRemotePods (CN-35): while a pod of another node is unknown, a
// pod that may be denied to reach it does not reach it, and vice versa.
func TestAdminDenyHoldsUnknownRemotePods(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web", "z/db@2")
	c.Start(t, labtest.WithAdmin)
	known := func(pods []*lab.Pod) {
		for _, pod := range pods {
			c.Put(t, labtest.PodFile(pod.Name), pod.Object)
		}
	}

	c.Apply(t, "egress", labtest.Admin("egress", `egress: [{name: z, action: Deny, to: [{namespaces: {matchLabels: {ns: z}}}], ports: [{portNumber: {protocol: TCP, port: 80}}]}]`))
	c.Expect(t, labtest.No("x/web", "z/db", "tcp/80"), labtest.Yes("x/web", "z/db", "tcp/81"))
	pods := c.Attach(t, labtest.NewPod("y/new@2"), labtest.NewPod("z/new@2"))
	c.Expect(t, labtest.No("x/web", "y/new", "tcp/80"), labtest.No("x/web", "z/new", "tcp/80"), labtest.Yes("x/web", "y/new", "tcp/81"))
	known(pods)
	c.Expect(t, labtest.Yes("x/web", "y/new", "tcp/80"), labtest.No("x/web", "z/new", "tcp/80"))

	c.Replace(t, "egress", labtest.Admin("ingress", `ingress: [{name: z, action: Deny, from: [{namespaces: {matchLabels: {ns: z}}}]}]`))
	c.Expect(t, labtest.Yes("x/web", "z/db", "tcp/80"), labtest.No("z/db", "x/web", "tcp/80"))
	pods = c.Attach(t, labtest.NewPod("y/late@2"), labtest.NewPod("z/late@2"))
	c.Expect(t, labtest.No("y/late", "x/web", "tcp/80"), labtest.No("z/late", "x/web", "tcp/80"), labtest.Yes("node-2", "x/web", "tcp/80"), labtest.Yes("node-2", "y/late", "tcp/80"))
	known(pods)
	c.Expect(t, labtest.Yes("y/late", "x/web", "tcp/80"), labtest.No("z/late", "x/web", "tcp/80"), labtest.Yes("node-2", "x/web", "tcp/80"))
}

// TestFailOpenUnknownPacket checks --fail-open=unknown-packet.
func TestFailOpenUnknownPacket(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	c.Start(t, "--fail-open=unknown-packet")
	c.Apply(t, "policies", onlyDB)
	c.Attach(t, labtest.NewPod("x/new@1 app=web"))
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
	web := c.Hosts["y/web"]
	for _, addr := range c.Addrs(t, "x/new") {
		answer, err := web.Probe(t.Context(), lab.UDP, netip.AddrPortFrom(addr, 80), answerTime)
		if err != nil || answer.Outcome != lab.Connected {
			t.Errorf("to %s: %s, %v", addr, answer.Outcome, err)
		}
	}
}
