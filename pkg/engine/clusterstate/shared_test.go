package clusterstate

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// TestTwoPodsOfOneAddress gives one address to an older pod of y and a newer pod, in a Cluster with
// all pods and in one with only the needed pods. x/a lets in the pods of y.
func TestTwoPodsOfOneAddress(t *testing.T) {
	const addr = "10.0.9.9"
	for _, tc := range []struct {
		name                string
		namespace, node     string // of the newer pod
		ended               bool   // the older one shows that it has ended
		more                string // added to the policies of x/b
		wantAll, wantNeeded bool   // whether x/a lets in packets from addr
	}{
		{name: "rules name both", namespace: "y", node: "n3", wantAll: true, wantNeeded: true},
		{name: "rules name both, which are of one node", namespace: "y", node: "n2", wantAll: true, wantNeeded: true},
		{name: "rules name the older one", namespace: "z", node: "n3", wantAll: false, wantNeeded: true},
		{name: "the older one has ended", namespace: "z", node: "n3", ended: true},
		{name: "a rule of another pod names the newer one", namespace: "z", node: "n3", more: `{podSelector: {matchLabels: {pod: b}}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: z}}}]}]}`},
		{name: "the newer one is of the node", namespace: "z", node: "n1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			older, newer := pod("y", "older", "n2", addr), pod(tc.namespace, "newer", tc.node, addr)
			newer.CreationTimestamp = metav1.NewTime(older.CreationTimestamp.Add(time.Minute))
			if tc.ended {
				older.Status.Phase = corev1.PodSucceeded
			}
			for partial, want := range map[bool]bool{false: tc.wantAll, true: tc.wantNeeded} {
				in := fixture()
				c := New(Config{NodeName: in.NodeName, Partial: partial, Features: in.Features})
				setAll(c, in.Namespaces)
				for _, p := range in.Pods {
					if p.Spec.NodeName == in.NodeName {
						c.Set(compile.NewPod(p))
					}
				}
				c.Set(netpol("x", "p", `{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: "y"}}}]}]}`))
				if tc.more != "" {
					c.Set(netpol("x", "q", tc.more))
				}
				c.Snapshot()
				needs := c.Needs()
				for _, p := range []*corev1.Pod{older, newer} {
					if !partial || p.Spec.NodeName == in.NodeName || (PodSet{Namespace: p.Namespace}).in(needs) {
						c.Set(compile.NewPod(p))
					}
				}
				c.SetListed(needs)
				got := c.Snapshot().Evaluate(policy.Query{Packet: packet.Packet{Proto: packet.TCP,
					Src: netip.AddrPortFrom(netip.MustParseAddr(addr), 1), Dst: netip.MustParseAddrPort("10.0.0.1:80")}})
				if got.Allowed() != want {
					t.Errorf("partial %v: allowed %v, want %v: %+v", partial, got.Allowed(), want, got)
				}
			}
		})
	}
}

func (s PodSet) in(sets []PodSet) bool {
	for _, o := range sets {
		if o.Includes(s) {
			return true
		}
	}
	return false
}
