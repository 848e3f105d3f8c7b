package compile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

var adminNetworkPolicyActions = []string{actionAllow, actionDeny, actionPass}

// KindAdminNetworkPolicy is version v1alpha1.
var KindAdminNetworkPolicy = adminKind(Kind{
	Name:           "AdminNetworkPolicy",
	Resource:       schema.GroupVersion(v1alpha1.GroupVersion).WithResource("adminnetworkpolicies"),
	HasStatus:      true,
	HasDomainNames: true,
	Tiers:          []policy.Tier{policy.AdminTier},
	PortsField:     v1alpha1PortsField,
	Install:        v1alpha1.Install,
	Docs:           "docs/semantics.md#administrators-policies",
}, func(m metav1.ObjectMeta, o *v1alpha1.AdminNetworkPolicy) *v1alpha1.AdminNetworkPolicy {
	return &v1alpha1.AdminNetworkPolicy{ObjectMeta: m, Spec: o.Spec}
}, func(o *v1alpha1.AdminNetworkPolicy) *AdminSpec {
	return v1alpha1Spec(&o.Spec, adminNetworkPolicyActions)
}, compileAdminNetworkPolicy)

func compileAdminNetworkPolicy(_ *diagnosis, o *v1alpha1.AdminNetworkPolicy) (p *Policy, valid bool) {
	return &Policy{spec: &o.Spec, Tier: policy.AdminTier, priority: o.Spec.Priority}, true
}
