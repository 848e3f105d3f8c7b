package compile

import (
	"math"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// lastPriority orders the policy, which has no priority, after every other policy of its tier
// (CN-8).
const lastPriority = math.MaxInt32

// baselineName is the only valid name of a BaselineAdminNetworkPolicy (CN-32).
const baselineName = "default"

var baselineAdminNetworkPolicyActions = []string{actionAllow, actionDeny}

// KindBaselineAdminNetworkPolicy is version v1alpha1.
var KindBaselineAdminNetworkPolicy = adminKind(Kind{
	Name:       "BaselineAdminNetworkPolicy",
	Resource:   schema.GroupVersion(v1alpha1.GroupVersion).WithResource("baselineadminnetworkpolicies"),
	HasStatus:  true,
	Tiers:      []policy.Tier{policy.BaselineTier},
	PortsField: v1alpha1PortsField,
	Install:    v1alpha1.Install,
	Docs:       "docs/semantics.md#administrators-policies",
}, func(m metav1.ObjectMeta, o *v1alpha1.BaselineAdminNetworkPolicy) *v1alpha1.BaselineAdminNetworkPolicy {
	return &v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: m, Spec: o.Spec}
}, func(o *v1alpha1.BaselineAdminNetworkPolicy) *AdminSpec {
	return v1alpha1Spec(baselineSpec(&o.Spec), baselineAdminNetworkPolicyActions)
}, compileBaselineAdminNetworkPolicy)

func compileBaselineAdminNetworkPolicy(d *diagnosis, o *v1alpha1.BaselineAdminNetworkPolicy) (p *Policy, valid bool) {
	p = &Policy{spec: &o.Spec, Tier: policy.BaselineTier, priority: lastPriority}
	if o.Name != baselineName {
		d.find(metadataName, policy.FeatureNotSupported, "%q is not %q; the policy is ignored", o.Name, baselineName)
		d.nothingLeft()
		return p, false
	}
	return p, true
}

// baselineSpec converts s into the larger spec of v1alpha1, which has all of its fields.
func baselineSpec(s *v1alpha1.BaselineAdminNetworkPolicySpec) *v1alpha1.AdminNetworkPolicySpec {
	spec := &v1alpha1.AdminNetworkPolicySpec{Subject: s.Subject}
	for _, r := range s.Ingress {
		spec.Ingress = append(spec.Ingress, v1alpha1.AdminNetworkPolicyIngressRule{
			Action: v1alpha1.AdminNetworkPolicyRuleAction(r.Action), From: r.From, Ports: r.Ports,
		})
	}
	for _, r := range s.Egress {
		rule := v1alpha1.AdminNetworkPolicyEgressRule{Action: v1alpha1.AdminNetworkPolicyRuleAction(r.Action), Ports: r.Ports}
		for _, p := range r.To {
			rule.To = append(rule.To, v1alpha1.AdminNetworkPolicyEgressPeer{Namespaces: p.Namespaces, Pods: p.Pods, Nodes: p.Nodes, Networks: p.Networks})
		}
		spec.Egress = append(spec.Egress, rule)
	}
	return spec
}
