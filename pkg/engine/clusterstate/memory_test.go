package clusterstate

import (
	"fmt"
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Cached evaluations apply to pods that replace the peer, until a policy that selects the
// destination changes.
func TestWhatIsRememberedOutlivesChangesElsewhere(t *testing.T) {
	memory := policy.NewMemory(1 << 20)
	c := New(Config{NodeName: "n1", Features: compile.AllFeatures(), Memory: memory})
	in := fixture()
	setAll(c, in.Namespaces)
	setAll(c, in.Nodes)
	for _, p := range in.Pods {
		c.Set(compile.NewPod(p))
	}
	from := func(peers string) string {
		return fmt.Sprintf(`{podSelector: {}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {pod: %s}}}], ports: [{port: web}]}]}`, peers)
	}
	rollout := func(n int) {
		for i, name := range []string{"a", "b", "c"} {
			p := pod("z", fmt.Sprint(name, n), "n2", fmt.Sprintf("10.0.2.%d", i+1))
			p.Labels["pod"], p.Labels["pod-template-hash"] = name, fmt.Sprint(n)
			c.Set(compile.NewPod(p))
			c.Delete(compile.KindPod, "z", fmt.Sprint(name, n-1))
		}
	}
	dst := in.Pods[0].DeepCopy() // x/a
	mustRead(`[{name: c, ports: [{name: web, containerPort: 80}]}]`, &dst.Spec.Containers)
	c.Set(compile.NewPod(dst))
	c.Set(netpol("x", "p", from("b")))
	c.Set(netpol("y", "p", from("c")))
	allowed := func() (names string) {
		s := c.Snapshot()
		for i, name := range []string{"a", "b", "c"} {
			p := packet.Packet{Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 2, byte(i + 1)}), 40000), Dst: netip.MustParseAddrPort("10.0.0.1:80"), Proto: packet.TCP}
			if s.Evaluate(policy.Query{Packet: p}).Allowed() {
				names += name
			}
		}
		return names
	}
	for _, step := range []struct {
		name       string
		change     func()
		want       string
		remembered bool // nothing is evaluated
	}{
		{"the first packets", func() {}, "b", false},
		{"the next packets", func() {}, "b", true},
		{"a rollout of the peers", func() { rollout(1) }, "b", true},
		{"a policy for other pods", func() { c.Set(netpol("y", "p", from("a"))) }, "b", true},
		{"a policy for other pods is new", func() { c.Set(netpol("y", "q", from("a"))) }, "b", true},
		{"a label of the peers' namespace that is not read", func() {
			ns := in.Namespaces[2].DeepCopy()
			ns.Labels["cost-center"] = "1"
			c.Set(ns)
		}, "b", true},
		{"the destination calls its port otherwise", func() {
			renamed := dst.DeepCopy()
			renamed.Spec.Containers[0].Ports[0].Name = "x"
			c.Set(compile.NewPod(renamed))
		}, "", false},
		{"and as before", func() { c.Set(compile.NewPod(dst)) }, "b", true},
		{"a policy for the destination", func() { c.Set(netpol("x", "p", from("c"))) }, "c", false},
		{"and as before", func() { c.Set(netpol("x", "p", from("b"))) }, "b", false},
	} {
		t.Run(step.name, func(t *testing.T) {
			before := memory.Used()
			step.change()
			if got := allowed(); got != step.want {
				t.Errorf("%q are allowed, want %q", got, step.want)
			}
			if remembered := memory.Used() == before; remembered != step.remembered {
				t.Errorf("%d bytes remembered, %d before: nothing new %v, want %v", memory.Used(), before, remembered, step.remembered)
			}
		})
	}
}
