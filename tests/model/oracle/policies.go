package oracle

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// rule is an ingress or an egress rule; peers is its from or to list.
type rule struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

// isolated: NP-1, some policy of the pod's namespace selects it and has the
// direction among its types. The directions are independent.
func (c Cluster) isolated(pod *corev1.Pod, dir networkingv1.PolicyType) bool {
	return slices.ContainsFunc(c.NetworkPolicies, func(policy *networkingv1.NetworkPolicy) bool {
		return isolates(policy, pod, dir)
	})
}

// isolates: NP-1 and NP-6, for one policy. An unreadable selector selects nothing.
func isolates(policy *networkingv1.NetworkPolicy, pod *corev1.Pod, dir networkingv1.PolicyType) bool {
	return policy.Namespace == pod.Namespace &&
		hasType(policy, dir) &&
		selects(policy.Spec.PodSelector, pod.Labels)
}

// hasType: NP-4, a policy without types is for ingress, and for egress too if it has egress rules.
// NP-5: otherwise the types count as written; an unknown type isolates no pod.
func hasType(policy *networkingv1.NetworkPolicy, dir networkingv1.PolicyType) bool {
	if len(policy.Spec.PolicyTypes) > 0 {
		return slices.Contains(policy.Spec.PolicyTypes, dir)
	}
	return dir == networkingv1.PolicyTypeIngress || len(policy.Spec.Egress) > 0
}

// anyPolicyIsolates: NP-55, whether an unknown pod might be isolated. Its namespace is unknown, so
// every policy counts.
func (c Cluster) anyPolicyIsolates(dir networkingv1.PolicyType) bool {
	return slices.ContainsFunc(c.NetworkPolicies, func(policy *networkingv1.NetworkPolicy) bool {
		return hasType(policy, dir)
	})
}

// rulesOf returns the rules of one direction.
func rulesOf(policy *networkingv1.NetworkPolicy, dir networkingv1.PolicyType) []rule {
	var rules []rule
	if dir == networkingv1.PolicyTypeEgress {
		for _, r := range policy.Spec.Egress {
			rules = append(rules, rule{r.To, r.Ports})
		}
		return rules
	}
	for _, r := range policy.Spec.Ingress {
		rules = append(rules, rule{r.From, r.Ports})
	}
	return rules
}

// ruleMatches: NP-9, a rule needs a peer and a port.
func (c Cluster) ruleMatches(policy *networkingv1.NetworkPolicy, r rule, q Query, dir networkingv1.PolicyType) bool {
	return c.anyPeerMatches(policy, r.peers, q.peer(dir)) && c.anyPortMatches(r.ports, q.Packet)
}
