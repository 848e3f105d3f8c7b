package clusterstate

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// TestAnnotationOfANamespace: AU-2, changing only the annotation affects the pods of the namespace.
func TestAnnotationOfANamespace(t *testing.T) {
	c := New(Config{NodeName: "n", Features: compile.AllFeatures()})
	c.Set(compile.NewPod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "web"},
		Spec:       corev1.PodSpec{NodeName: "n"},
		Status:     corev1.PodStatus{PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}},
	}))
	c.Set(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "closed"},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
	})
	q := policy.Query{Packet: packet.Packet{Src: netip.MustParseAddrPort("10.0.1.1:40000"), Dst: netip.MustParseAddrPort("10.0.0.1:80"), Proto: packet.TCP}}
	for i, tt := range []struct {
		annotations map[string]string
		want        policy.Action
		audited     bool
	}{
		{nil, policy.Deny, false},
		{map[string]string{compile.EnforcementAnnotation: "audit"}, policy.Allow, true},
		{map[string]string{compile.EnforcementAnnotation: "Audit"}, policy.Deny, false},
		{map[string]string{compile.EnforcementAnnotation: "audit"}, policy.Allow, true},
		{nil, policy.Deny, false},
	} {
		c.Set(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: tt.annotations}})
		d, audited := c.Snapshot().EvaluateAudited(q)
		if d.Action != tt.want || audited != tt.audited {
			t.Errorf("step %d, %v: %v, audited %v; want %v and %v", i, tt.annotations, d, audited, tt.want, tt.audited)
		}
	}
	c.Set(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: map[string]string{compile.EnforcementAnnotation: "audit"}}})
	c.Delete(compile.KindNamespace, "", "x")
	if d := c.Snapshot().Evaluate(q); d.Allowed() {
		t.Errorf("the namespace is gone, and its policies are audited: %v", d)
	}
}
