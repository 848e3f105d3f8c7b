package compile

import (
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// baselineName is the one name that a BaselineAdminNetworkPolicy can have
// (CN-32).
const baselineName = "default"

var baselineAdminNetworkPolicyActions = []string{actionAllow, actionDeny}

// DiagnoseBaselineAdminNetworkPolicy returns what of o cannot be honoured, the
// same findings in the same order that Compile has for it. They depend on no
// other object.
func DiagnoseBaselineAdminNetworkPolicy(o *v1alpha1.BaselineAdminNetworkPolicy, features Features) []policy.Finding {
	return compileBaselineAdminNetworkPolicy(o, features).findings
}

func compileBaselineAdminNetworkPolicy(o *v1alpha1.BaselineAdminNetworkPolicy, features Features) *adminPolicy {
	d := newDiagnosis(KindBaselineAdminNetworkPolicy, o, features)
	p := &adminPolicy{ref: d.ref, spec: &o.Spec, tier: policy.BaselineTier, priority: lastPriority}
	if o.Name != baselineName {
		d.find(metadataName, policy.FeatureNotSupported, "%q is not %q; the policy is ignored", o.Name, baselineName)
		d.nothingLeft()
		p.findings = d.findings
		return p
	}
	d.v1alpha1(p, baselineSpec(&o.Spec), baselineAdminNetworkPolicyActions)
	return p
}

// baselineSpec says s in the words of AdminNetworkPolicy, which has them all.
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
