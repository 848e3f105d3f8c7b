package clusterwatch

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

func TestStripKeepsWhatPolicyNeeds(t *testing.T) {
	bulky := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: "a", UID: "u", ResourceVersion: "7", Labels: map[string]string{"l": "1"},
			Annotations: map[string]string{"a": "1"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		}
	}
	slim := metav1.ObjectMeta{Name: "a"}
	labelled := slim
	labelled.Labels = map[string]string{"l": "1"}
	generation := func(m metav1.ObjectMeta) metav1.ObjectMeta { m.Generation = 3; return m }
	spec := networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Egress"}}

	ns := stripNamespace(&corev1.Namespace{ObjectMeta: bulky(), Status: corev1.NamespaceStatus{Phase: "Active"}})
	if diff := cmp.Diff(&corev1.Namespace{ObjectMeta: labelled}, ns); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	node := stripNode(&corev1.Node{
		ObjectMeta: bulky(),
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.0.0.0/24"}, Unschedulable: true},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady}}},
	})
	if diff := cmp.Diff(&corev1.Node{ObjectMeta: slim, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.0.0.0/24"}}}, node); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	addresses := []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.168.0.1"}, {Type: corev1.NodeHostName, Address: "a"},
		{Type: corev1.NodeExternalIP, Address: "2001:db8::1"}, {Type: corev1.NodeInternalDNS, Address: "a.example"}, {Type: corev1.NodeExternalIP},
	}
	peer := stripPeerNode(&corev1.Node{
		ObjectMeta: bulky(),
		Spec:       corev1.NodeSpec{PodCIDR: "10.0.0.0/24", Unschedulable: true},
		Status:     corev1.NodeStatus{Addresses: addresses, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady}}},
	})
	if diff := cmp.Diff(&corev1.Node{
		ObjectMeta: labelled,
		Spec:       corev1.NodeSpec{PodCIDR: "10.0.0.0/24"},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{addresses[0], addresses[2]}},
	}, peer); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	p := compile.KindNetworkPolicy.Strip(&networkingv1.NetworkPolicy{ObjectMeta: generation(bulky()), Spec: spec})
	if diff := cmp.Diff(&networkingv1.NetworkPolicy{ObjectMeta: generation(slim), Spec: spec}, p); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	admin := compile.KindAdminNetworkPolicy.Strip(&v1alpha1.AdminNetworkPolicy{
		ObjectMeta: generation(bulky()),
		Spec:       v1alpha1.AdminNetworkPolicySpec{Priority: 7},
		Status:     v1alpha1.AdminNetworkPolicyStatus{Conditions: []metav1.Condition{{}}},
	})
	if diff := cmp.Diff(&v1alpha1.AdminNetworkPolicy{ObjectMeta: generation(slim), Spec: v1alpha1.AdminNetworkPolicySpec{Priority: 7}}, admin); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	ingress := []v1alpha1.BaselineAdminNetworkPolicyIngressRule{{Action: v1alpha1.BaselineAdminNetworkPolicyRuleActionDeny}}
	baseline := compile.KindBaselineAdminNetworkPolicy.Strip(&v1alpha1.BaselineAdminNetworkPolicy{
		ObjectMeta: generation(bulky()),
		Spec:       v1alpha1.BaselineAdminNetworkPolicySpec{Ingress: ingress},
		Status:     v1alpha1.BaselineAdminNetworkPolicyStatus{Conditions: []metav1.Condition{{}}},
	})
	if diff := cmp.Diff(&v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: generation(slim), Spec: v1alpha1.BaselineAdminNetworkPolicySpec{Ingress: ingress}}, baseline); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	cluster := compile.KindClusterNetworkPolicy.Strip(&proposed.ClusterNetworkPolicy{
		ObjectMeta: generation(bulky()),
		Spec:       proposed.ClusterNetworkPolicySpec{Tier: v1beta1.AdminTier},
		Status:     v1beta1.ClusterNetworkPolicyStatus{Conditions: []metav1.Condition{{}}},
	})
	if diff := cmp.Diff(&proposed.ClusterNetworkPolicy{ObjectMeta: generation(slim), Spec: proposed.ClusterNetworkPolicySpec{Tier: v1beta1.AdminTier}}, cluster); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
