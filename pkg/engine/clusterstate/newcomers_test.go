package clusterstate

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// TestNewcomers follows pods without an address, of this node and of another.
func TestNewcomers(t *testing.T) {
	const receiver, unknown = "10.0.0.1", "192.0.2.9"
	in := fixture()
	in.Policies = append(in.Policies, netpol("x", "p", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {pod: new}}}]}]}`))
	c := newFrom(in)
	check := func(when string, waits bool) {
		t.Helper()
		d := c.Snapshot().Evaluate(policy.Query{AwaitSource: true, Packet: packet.Packet{Proto: packet.TCP,
			Src: netip.AddrPortFrom(netip.MustParseAddr(unknown), 1), Dst: netip.AddrPortFrom(netip.MustParseAddr(receiver), 80)}})
		if got := d.Reason == policy.UnknownSource; got != waits || d.Allowed() {
			t.Errorf("%s: %v, want waiting %v", when, d, waits)
		}
	}
	set := func(node string, change func(*corev1.Pod)) {
		p := newcomer("new")
		p.Spec.NodeName = node
		change(p)
		c.Set(compile.NewPod(p))
	}
	nothing := func(*corev1.Pod) {}
	check("no new pod", false)
	set("n2", nothing)
	check("a pod of another node", true)
	set("n2", func(p *corev1.Pod) { p.Labels = map[string]string{"pod": "other"} })
	check("with labels that are not allowed", false)
	set("n2", func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.2.77"}} })
	check("with an address", false)
	set("n2", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	check("of the node's network", false)
	set("n2", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	check("that has ended", false)
	set("", nothing)
	check("that is not scheduled", false)
	set("n1", nothing)
	check("of this node", false)
	set("n2", nothing)
	check("of another node again", true)
	c.Delete(compile.KindPod, "x", "new")
	check("that is gone", false)
	for i := range 2 * policy.MaxNewcomers {
		p := newcomer(fmt.Sprint("other-", i))
		p.Spec.NodeName = "n2"
		c.Set(compile.NewPod(p))
	}
	check("more than are evaluated", true)
}
