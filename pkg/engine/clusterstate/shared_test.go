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

// TestTwoPodsOfOneAddress gives one address to an older pod of y and a newer pod. x/a lets in the
// pods of y.
func TestTwoPodsOfOneAddress(t *testing.T) {
	const addr = "10.0.9.9"
	for _, tc := range []struct {
		name            string
		namespace, node string // of the newer pod
		ended           bool   // the older one shows that it has ended
		want            bool   // whether x/a lets in packets from addr
	}{
		{name: "rules name both", namespace: "y", node: "n3", want: true},
		{name: "rules name both, which are of one node", namespace: "y", node: "n2", want: true},
		{name: "rules name the older one only", namespace: "z", node: "n3"},
		{name: "the older one has ended", namespace: "z", node: "n3", ended: true},
		{name: "the newer one is of the node", namespace: "z", node: "n1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			older, newer := pod("y", "older", "n2", addr), pod(tc.namespace, "newer", tc.node, addr)
			newer.CreationTimestamp = metav1.NewTime(older.CreationTimestamp.Add(time.Minute))
			if tc.ended {
				older.Status.Phase = corev1.PodSucceeded
			}
			in := fixture()
			c := newFrom(in)
			c.Set(netpol("x", "p", `{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: "y"}}}]}]}`))
			c.Set(compile.NewPod(older))
			c.Set(compile.NewPod(newer))
			got := c.Snapshot().Evaluate(policy.Query{Packet: packet.Packet{Proto: packet.TCP,
				Src: netip.AddrPortFrom(netip.MustParseAddr(addr), 1), Dst: netip.MustParseAddrPort("10.0.0.1:80")}})
			if got.Allowed() != tc.want {
				t.Errorf("allowed %v, want %v: %+v", got.Allowed(), tc.want, got)
			}
		})
	}
}
