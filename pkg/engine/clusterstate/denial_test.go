package clusterstate

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// DN-1: the annotation of the namespace overrides the default, whatever the order of events.
func TestDenialFollowsTheNamespace(t *testing.T) {
	for _, unannotated := range []compile.Denial{compile.Drop, compile.Reject} {
		c := New(Config{NodeName: "n1", Features: compile.AllFeatures(), Denial: unannotated})
		c.Set(compile.NewPod(pod("x", "web", "n1", "10.0.0.1")))
		c.Set(compile.NewPod(pod("x", "far", "n2", "10.0.1.1")))
		c.Set(compile.NewPod(pod("y", "open", "n1", "10.0.0.3")))
		c.Set(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "none"}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"}}})
		expect := func(when string, rejects bool) {
			t.Helper()
			var want []netip.Addr
			if rejects {
				want = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
			}
			if got := c.Snapshot().Rejecting(); !slices.Equal(got, want) {
				t.Errorf("%s, otherwise %v: pods %v reject, want %v", when, unannotated, got, want)
			}
		}
		annotated := func(value string) *corev1.Namespace {
			return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: map[string]string{compile.DenyAnnotation: value}}}
		}
		expect("without a namespace", unannotated == compile.Reject)
		for _, value := range []string{"reject", "drop", "reject"} {
			before := c.Snapshot()
			if !c.Set(annotated(value)) {
				t.Errorf("%s is no change", value)
			}
			expect(value, value == "reject")
			if c.Set(annotated(value)) {
				t.Errorf("%s again is a change", value)
			}
			if after := c.Snapshot(); after.SameLocal(before) != slices.Equal(after.Rejecting(), before.Rejecting()) {
				t.Errorf("%s: the same pods of the node: %v", value, after.SameLocal(before))
			}
		}
		c.Set(compile.NewPod(pod("x", "web", "n1", "10.0.0.1")))
		expect("the pod again", true)
		c.Delete(compile.KindNamespace, "", "x")
		expect("deleted", unannotated == compile.Reject)
	}
}
