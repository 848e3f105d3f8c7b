package simulated

import (
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Naive are evaluators that misread administrators' policies, each in a plausible way. The
// scenarios must detect every one of them.
var Naive = map[string]Evaluator{
	"Pass is Allow":                         misread(changeActions(map[string]string{"Pass": "Allow"})),
	"Pass is Deny":                          misread(changeActions(map[string]string{"Pass": "Deny"})),
	"a larger number is evaluated first":    misread(reversePriorities),
	"there is no Baseline":                  misread(dropBaseline),
	"Baseline comes before the other tiers": misread(raiseBaseline),
	"the own node is always allowed": exempting(func(p Packet) bool {
		return p.ToHost
	}),
	"a pod always reaches itself": exempting(func(p Packet) bool {
		return p.Src.Addr() == p.Dst.Addr()
	}),
}

// misread evaluates like the agent, but with changed policies.
func misread(change func(*netpol.State)) Evaluator {
	return func(node string, state *netpol.State, nodes []*corev1.Node) func(Packet) bool {
		state = state.Clone()
		for i, p := range state.AdminNetworkPolicies {
			state.AdminNetworkPolicies[i] = p.DeepCopy()
		}
		for i, p := range state.ClusterNetworkPolicies {
			state.ClusterNetworkPolicies[i] = p.DeepCopy()
		}
		change(state)
		return Compiled(node, state, nodes)
	}
}

// exempting evaluates like the agent, but allows some packets.
func exempting(exempt func(Packet) bool) Evaluator {
	return func(node string, state *netpol.State, nodes []*corev1.Node) func(Packet) bool {
		allows := Compiled(node, state, nodes)
		return func(p Packet) bool { return exempt(p) || allows(p) }
	}
}

// changeActions replaces actions, given by their names in v1alpha1.
func changeActions(actions map[string]string) func(*netpol.State) {
	v1 := func(a *v1alpha1.AdminNetworkPolicyRuleAction) {
		if other, ok := actions[string(*a)]; ok {
			*a = v1alpha1.AdminNetworkPolicyRuleAction(other)
		}
	}
	v2 := func(a *v1beta1.ClusterNetworkPolicyRuleAction) {
		other, ok := actions[string(*a)]
		if other == "Allow" {
			other = "Accept"
		}
		if ok {
			*a = v1beta1.ClusterNetworkPolicyRuleAction(other)
		}
	}
	return func(s *netpol.State) {
		for _, p := range s.AdminNetworkPolicies {
			for i := range p.Spec.Ingress {
				v1(&p.Spec.Ingress[i].Action)
			}
			for i := range p.Spec.Egress {
				v1(&p.Spec.Egress[i].Action)
			}
		}
		for _, p := range s.ClusterNetworkPolicies {
			for i := range p.Spec.Ingress {
				v2(&p.Spec.Ingress[i].Action)
			}
			for i := range p.Spec.Egress {
				v2(&p.Spec.Egress[i].Action)
			}
		}
	}
}

func reversePriorities(s *netpol.State) {
	for _, p := range s.AdminNetworkPolicies {
		p.Spec.Priority = 1000 - p.Spec.Priority
	}
	for _, p := range s.ClusterNetworkPolicies {
		p.Spec.Priority = 1000 - p.Spec.Priority
	}
}

func dropBaseline(s *netpol.State) {
	s.BaselineAdminNetworkPolicies = nil
	for _, p := range s.ClusterNetworkPolicies {
		if p.Spec.Tier == v1beta1.BaselineTier {
			p.Spec.Tier = ""
		}
	}
}

func raiseBaseline(s *netpol.State) {
	for _, p := range s.ClusterNetworkPolicies {
		if p.Spec.Tier == v1beta1.BaselineTier {
			p.Spec.Tier, p.Spec.Priority = v1beta1.AdminTier, p.Spec.Priority+1001
		}
	}
}
