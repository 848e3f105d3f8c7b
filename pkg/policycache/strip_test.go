package policycache

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
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
	if want := (&corev1.Namespace{ObjectMeta: labelled}); !reflect.DeepEqual(ns, want) {
		t.Errorf("got %+v, want %+v", ns, want)
	}
	node := stripNode(&corev1.Node{
		ObjectMeta: bulky(),
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.0.0.0/24"}, Unschedulable: true},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady}}},
	})
	if want := (&corev1.Node{ObjectMeta: slim, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.0.0.0/24"}}}); !reflect.DeepEqual(node, want) {
		t.Errorf("got %+v, want %+v", node, want)
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
	if want := (&corev1.Node{
		ObjectMeta: labelled,
		Spec:       corev1.NodeSpec{PodCIDR: "10.0.0.0/24"},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{addresses[0], addresses[2]}},
	}); !reflect.DeepEqual(peer, want) {
		t.Errorf("got %+v, want %+v", peer, want)
	}
	p := compile.KindNetworkPolicy.Strip(&networkingv1.NetworkPolicy{ObjectMeta: generation(bulky()), Spec: spec})
	if want := (&networkingv1.NetworkPolicy{ObjectMeta: generation(slim), Spec: spec}); !reflect.DeepEqual(p, want) {
		t.Errorf("got %+v, want %+v", p, want)
	}
	admin := compile.KindAdminNetworkPolicy.Strip(&v1alpha1.AdminNetworkPolicy{
		ObjectMeta: generation(bulky()),
		Spec:       v1alpha1.AdminNetworkPolicySpec{Priority: 7},
		Status:     v1alpha1.AdminNetworkPolicyStatus{Conditions: []metav1.Condition{{}}},
	})
	if want := (&v1alpha1.AdminNetworkPolicy{ObjectMeta: generation(slim), Spec: v1alpha1.AdminNetworkPolicySpec{Priority: 7}}); !reflect.DeepEqual(admin, want) {
		t.Errorf("got %+v, want %+v", admin, want)
	}
	ingress := []v1alpha1.BaselineAdminNetworkPolicyIngressRule{{Action: v1alpha1.BaselineAdminNetworkPolicyRuleActionDeny}}
	baseline := compile.KindBaselineAdminNetworkPolicy.Strip(&v1alpha1.BaselineAdminNetworkPolicy{
		ObjectMeta: generation(bulky()),
		Spec:       v1alpha1.BaselineAdminNetworkPolicySpec{Ingress: ingress},
		Status:     v1alpha1.BaselineAdminNetworkPolicyStatus{Conditions: []metav1.Condition{{}}},
	})
	if want := (&v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: generation(slim), Spec: v1alpha1.BaselineAdminNetworkPolicySpec{Ingress: ingress}}); !reflect.DeepEqual(baseline, want) {
		t.Errorf("got %+v, want %+v", baseline, want)
	}
	cluster := compile.KindClusterNetworkPolicy.Strip(&v1alpha2.ClusterNetworkPolicy{
		ObjectMeta: generation(bulky()),
		Spec:       v1alpha2.ClusterNetworkPolicySpec{Tier: v1alpha2.AdminTier},
		Status:     v1alpha2.ClusterNetworkPolicyStatus{Conditions: []metav1.Condition{{}}},
	})
	if want := (&v1alpha2.ClusterNetworkPolicy{ObjectMeta: generation(slim), Spec: v1alpha2.ClusterNetworkPolicySpec{Tier: v1alpha2.AdminTier}}); !reflect.DeepEqual(cluster, want) {
		t.Errorf("got %+v, want %+v", cluster, want)
	}
}
