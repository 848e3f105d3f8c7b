package attacks

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// webAndDB allows the pods web of namespace x only ingress from db and egress to db and to
// nodes.
var webAndDB = labtest.Policy("x", "web", `
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}]}]
  egress: [{to: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}]}]`)

// badNode returns a node whose kubelet the attacker controls. It has only the pods in
// statuses and is not a host of the lab.
func badNode(addrs ...string) *corev1.Node {
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node-3"}}
	node.Spec.PodCIDRs = []string{"10.244.3.0/24", "fd00:10:244:3::/64"}
	for _, a := range append([]string{"172.18.0.3"}, addrs...) {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return node
}

// claim writes the status of a pod on the bad node: with the addresses of a host and with
// labels that others admit. The pod is younger than all others.
func claim(t *testing.T, c *labtest.Cluster, host *lab.Host) {
	t.Helper()
	pod := labtest.NewPod("z/bad@3 app=db")
	pod.TypeMeta, pod.CreationTimestamp = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, metav1.Unix(1000, 0)
	pod.Status.Phase = corev1.PodRunning
	for _, a := range host.Addrs {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	c.Put(t, labtest.PodFile("z/bad"), pod)
}

// TestACompromisedNodeClaimsAddresses: NP-51, NP-62 and NP-64. A kubelet writes addresses
// of other pods and nodes into the statuses of its own pod and Node. In no direction do the
// owners of these addresses get the rights of that pod or of nodes.
func TestACompromisedNodeClaimsAddresses(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/web@1 app=web", "y/db@1 app=db", "y/other@1", "y/far@2", "y/db2@2 app=db")
	c.Put(t, "bad-node", badNode())
	agent := c.Start(t, labtest.WithAdmin)[0]
	c.Apply(t, "web", webAndDB)
	c.Enforce(t, agent, "nodes", labtest.Admin("nodes", `egress: [{name: nodes, action: Allow, to: [{nodes: {}}], ports: [{portNumber: {protocol: TCP, port: 81}}]}]`))
	outside, err := c.AddHost(t.Context(), c.Nodes[1], "outside", netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8::9"))
	if err != nil {
		t.Fatal(err)
	}
	c.Serve(t, outside)
	isolated := func() {
		t.Helper()
		c.Expect(t,
			labtest.No("outside", "x/web", "tcp/80"), labtest.No("x/web", "outside", "tcp/80"),
			labtest.Yes("y/db", "x/web", "tcp/80"), labtest.Yes("x/web", "y/db", "tcp/80"),
			labtest.Yes("y/db2", "x/web", "tcp/80"), labtest.Yes("x/web", "y/db2", "tcp/80"),
			labtest.No("y/other", "x/web", "tcp/80"), labtest.No("x/web", "y/other", "tcp/80"), labtest.No("x/web", "y/other", "tcp/81"),
			labtest.No("y/far", "x/web", "tcp/80"), labtest.No("x/web", "y/far", "tcp/80"), labtest.No("x/web", "y/far", "tcp/81"),
			labtest.No("node-2", "x/web", "tcp/80"), labtest.No("x/web", "node-2", "tcp/80"), labtest.Yes("x/web", "node-2", "tcp/81"))
	}
	isolated()
	conflicts := func(kind string) func(lab.Metrics) float64 {
		return func(m lab.Metrics) float64 { return m.Sum("netpol_address_conflicts", "kind", kind) }
	}
	for _, tc := range []struct{ host, kind, log string }{
		{"x/web", "local_pod", "shares an address with another pod"},
		{"y/other", "local_pod", "shares an address with another pod"},
		{"y/far", "pod_range", "in the pod range of its node"},
		{"node-2", "node_address", "has the address of another node"},
	} {
		claim(t, c, c.Hosts[tc.host])
		if got := labtest.Until(t, agent, 2, conflicts(tc.kind)); got != 2 {
			t.Errorf("%v conflicts are counted for the addresses of %s", got, tc.host)
		}
		isolated()
		labtest.WaitLog(t, agent, tc.log)
		c.Manifests.Remove(labtest.PodFile("z/bad"))
		labtest.Until(t, agent, 0, conflicts(tc.kind))
	}
	for _, host := range []string{"y/other", "y/far"} {
		c.Put(t, "bad-node", badNode(c.Hosts[host].Addrs[0].String(), c.Hosts[host].Addrs[1].String()))
		if got := labtest.Until(t, agent, 2, conflicts("node_status")); got != 2 {
			t.Errorf("%v conflicts about the addresses of %s in the status of a node", got, host)
		}
		isolated()
		c.Put(t, "bad-node", badNode())
		labtest.Until(t, agent, 0, conflicts("node_status"))
	}
	// An address without another claim gets the rights of the pod, as if the pod forwarded for it.
	labtest.Enforced(t, agent, func() { claim(t, c, outside) })
	c.Expect(t, labtest.Yes("outside", "x/web", "tcp/80"), labtest.Yes("x/web", "outside", "tcp/80"), labtest.No("y/far", "x/web", "tcp/80"), labtest.No("x/web", "y/far", "tcp/80"))
}

// TestACompromisedNodeClaimsAddressesOfPods: NP-51. Without administrators' kinds, an agent
// knows no Node except its own. Still, no other pod gets the rights of the bad node's pod.
func TestACompromisedNodeClaimsAddressesOfPods(t *testing.T) {
	c := labtest.NewCluster(t, 2, "x/web@1 app=web", "y/db@1 app=db", "y/far@2")
	agent := c.Start(t)[0]
	c.Enforce(t, agent, "web", webAndDB)
	for host, kind := range map[string]string{"x/web": "local_pod", "y/far": "other_pod"} {
		claim(t, c, c.Hosts[host])
		if got := labtest.Until(t, agent, 2, func(m lab.Metrics) float64 { return m.Sum("netpol_address_conflicts", "kind", kind) }); got != 2 {
			t.Errorf("%v conflicts are counted for the addresses of %s", got, host)
		}
		c.Expect(t,
			labtest.Yes("y/db", "x/web", "tcp/80"), labtest.Yes("x/web", "y/db", "tcp/80"),
			labtest.No("y/far", "x/web", "tcp/80"), labtest.No("x/web", "y/far", "tcp/80"))
	}
}

// TestACompromisedNodeClaimsNewAddresses: NP-55 and NP-62. A kubelet claims the addresses
// that the next pod of another node will have. That pod is isolated from its first packet
// nevertheless, whatever kinds of policies are enforced.
func TestACompromisedNodeClaimsNewAddresses(t *testing.T) {
	for _, args := range [][]string{nil, {labtest.WithAdmin}} {
		c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db")
		agent := c.Start(t, args...)[0]
		c.Enforce(t, agent, "web", webAndDB)
		fresh := c.Attach(t, labtest.NewPod("x/fresh@1 app=web"))[0]
		claim(t, c, fresh.Host)
		claimed := func(m lab.Metrics) float64 { return m.Sum("netpol_objects", "kind", "Pod") }
		labtest.Until(t, agent, 3, claimed)
		labtest.WaitLog(t, agent, "in the pod range of this node")
		c.Expect(t, labtest.No("x/fresh", "x/web", "tcp/80"), labtest.No("x/web", "x/fresh", "tcp/80"), labtest.No("x/fresh", "y/db", "udp/80"))
		labtest.Enforced(t, agent, func() { c.Put(t, labtest.PodFile("x/fresh"), fresh.Object) })
		c.Expect(t, labtest.No("x/fresh", "x/web", "tcp/80"), labtest.Yes("y/db", "x/fresh", "tcp/80"), labtest.Yes("x/fresh", "y/db", "udp/80"))
	}
}
