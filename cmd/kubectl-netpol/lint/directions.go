package lint

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

func deadDirection(c *cluster) {
	for _, p := range c.policies {
		if p.admin() || len(p.network.Spec.PolicyTypes) == 0 {
			continue
		}
		types := p.network.Spec.PolicyTypes
		if len(p.network.Spec.Ingress) > 0 && !slices.Contains(types, networkingv1.PolicyTypeIngress) {
			c.find(p, "spec.ingress", "Add Ingress to policyTypes.", "policyTypes has only %v: the rules of ingress are ignored", types)
		}
		if len(p.network.Spec.Egress) > 0 && !slices.Contains(types, networkingv1.PolicyTypeEgress) {
			c.find(p, "spec.egress", "Add Egress to policyTypes.", "policyTypes has only %v: the rules of egress are ignored", types)
		}
	}
}

func implicitIngress(c *cluster) {
	for _, p := range c.policies {
		if p.admin() || len(p.network.Spec.Egress) == 0 || p.network.Spec.Ingress != nil {
			continue
		}
		if len(p.network.Spec.PolicyTypes) == 0 || !c.written(p, "spec.policyTypes") {
			c.find(p, "spec.egress", "", "there is no policyTypes, and no rule of ingress: all ingress of %s is denied", selectorText(p.Subject))
		}
	}
}

// compiledRules returns pointers to the rules of direction d.
func compiledRules(p *compiled, d policy.Direction) []*policy.Rule {
	var all []*policy.Rule
	for i := range p.Rules(d) {
		all = append(all, &p.Rules(d)[i])
	}
	return all
}
