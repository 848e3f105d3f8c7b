package compile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// What the kinds of administrators' policies have in common. Their types differ
// slightly; they are all compiled from those of v1alpha2.

// AdminSpec is what administrators' policies of all kinds have, in the types of
// v1alpha2.
type AdminSpec struct {
	Subject v1alpha2.ClusterNetworkPolicySubject
	// Rules are those of each direction, as they are written.
	Rules [2][]AdminRule

	actions []string // that the kind has
}

// AdminRule is a rule of an AdminSpec.
type AdminRule struct {
	Peers []v1alpha2.ClusterNetworkPolicyEgressPeer

	action string
	// ports compiles the ports that the rule at a path has, nil if it has none.
	ports func(*adminRule, location)
}

// adminSpec compiles s into p, which has its tier.
func (d *diagnosis) adminSpec(p *Policy, s *AdminSpec) {
	p.Subject = d.subject(s.Subject)
	for direction, rules := range s.Rules {
		for i := range rules {
			at := ruleAt(policy.Direction(direction), i)
			p.rules[direction] = append(p.rules[direction], d.adminRule(at, &rules[i], s.actions, p.Tier)...)
		}
	}
}

// subject compiles the subject of a policy (CN-10: pods with a network of their
// own, which endpoints are). One that cannot be read selects nothing.
func (d *diagnosis) subject(s v1alpha2.ClusterNetworkPolicySubject) *policy.PodSelector {
	at := specPath.child("subject")
	var selector *policy.PodSelector
	var err error
	switch {
	case s.Namespaces != nil && s.Pods == nil:
		at = at.child("namespaces")
		selector, err = selectNamespaces(s.Namespaces)
	case s.Pods != nil && s.Namespaces == nil:
		at = at.child("pods")
		selector, err = selectPods(s.Pods)
	default:
		d.find(at, policy.InvalidSelector, "exactly one of namespaces and pods is needed; the policy selects no pod")
		d.nothingLeft()
		return nil
	}
	if err != nil {
		d.find(at, policy.InvalidSelector, "%v; the policy selects no pod", err)
		d.nothingLeft()
		return nil
	}
	return selector
}

// selectNamespaces selects all pods of some namespaces.
func selectNamespaces(s *metav1.LabelSelector) (*policy.PodSelector, error) {
	namespaces, err := metav1.LabelSelectorAsSelector(s)
	return &policy.PodSelector{Namespaces: namespaces, Pods: labels.Everything()}, err
}

// selectPods selects some pods of some namespaces.
func selectPods(p *v1alpha2.NamespacedPod) (*policy.PodSelector, error) {
	namespaces, err := metav1.LabelSelectorAsSelector(&p.NamespaceSelector)
	if err != nil {
		return nil, err
	}
	pods, err := metav1.LabelSelectorAsSelector(&p.PodSelector)
	return &policy.PodSelector{Namespaces: namespaces, Pods: pods}, err
}

// convert turns strings of one type into those of another.
func convert[T, S ~string](all []S) []T {
	out := make([]T, len(all))
	for i, s := range all {
		out[i] = T(s)
	}
	return out
}

// count returns how many of its arguments are true.
func count(all ...bool) int {
	n := 0
	for _, is := range all {
		if is {
			n++
		}
	}
	return n
}
