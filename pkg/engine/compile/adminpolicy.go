package compile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// The common part of the kinds of administrators' policies. Their types differ slightly, so all are
// converted to those of v1beta1 with the fields of proposals, and compiled from there.

// AdminSpec is the common part of administrators' policies of all kinds.
type AdminSpec struct {
	Subject proposed.Subject
	// Rules are the rules of each direction as written.
	Rules [2][]AdminRule

	actions []string // the actions of the kind
}

// AdminRule is a rule of an AdminSpec.
type AdminRule struct {
	Peers []proposed.EgressPeer

	name   string // the author's, empty if there is none
	action string
	// ports compiles the ports of the rule at a location. It is nil if the rule has none.
	ports func(*adminRule, location)
}

// adminSpec compiles s into p, whose tier is already set.
func (d *diagnosis) adminSpec(p *Policy, s *AdminSpec) {
	p.Subject = d.subject(s.Subject)
	for direction, rules := range s.Rules {
		for i := range rules {
			at := ruleAt(policy.Direction(direction), i)
			p.rules[direction] = append(p.rules[direction], d.adminRule(at, &rules[i], s.actions, p.Tier)...)
		}
	}
}

// subject compiles the subject of a policy. CN-10 needs no code here: host-network pods are not
// endpoints. An unreadable subject selects nothing.
func (d *diagnosis) subject(s proposed.Subject) *policy.PodSelector {
	at := specPath.child("subject")
	selectsNone := func(reason, why string) *policy.PodSelector {
		d.find(at, reason, "%s; the policy selects no pod", why)
		d.nothingLeft()
		return nil
	}
	pods := proposed.EgressPeer{PeerFields: proposed.PeerFields{ServiceAccounts: s.ServiceAccounts}}
	pods.Namespaces, pods.Pods = s.Namespaces, s.Pods
	field, known := fieldOf(&pods)
	if known != 1 {
		return selectsNone(policy.InvalidSelector, "exactly one of namespaces and pods is needed")
	}
	at = at.child(field.name)
	if gate := field.gates[policy.Ingress].disabled(d.features); gate != nil {
		return selectsNone(policy.FeatureNotSupported, gate.needed())
	}
	selector, err := field.pods(&pods)
	if err != nil {
		return selectsNone(policy.InvalidSelector, err.Error())
	}
	return selector
}

// selectNamespaces selects all pods of some namespaces.
func selectNamespaces(p *proposed.EgressPeer) (*policy.PodSelector, error) {
	namespaces, err := metav1.LabelSelectorAsSelector(p.Namespaces)
	return &policy.PodSelector{Namespaces: namespaces, Pods: labels.Everything()}, err
}

// selectPods selects some pods of some namespaces.
func selectPods(p *proposed.EgressPeer) (*policy.PodSelector, error) {
	namespaces, err := metav1.LabelSelectorAsSelector(&p.Pods.NamespaceSelector)
	if err != nil {
		return nil, err
	}
	pods, err := metav1.LabelSelectorAsSelector(&p.Pods.PodSelector)
	return &policy.PodSelector{Namespaces: namespaces, Pods: pods}, err
}

// convert converts a slice between string types.
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
