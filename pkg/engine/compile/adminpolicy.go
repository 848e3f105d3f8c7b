package compile

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

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
	var selector *policy.PodSelector
	var err error
	switch {
	case count(s.Namespaces != nil, s.Pods != nil, s.ServiceAccounts != nil) != 1:
		return selectsNone(policy.InvalidSelector, "exactly one of namespaces and pods is needed")
	case s.Namespaces != nil:
		at = at.child("namespaces")
		selector, err = selectNamespaces(s.Namespaces)
	case s.Pods != nil:
		at = at.child("pods")
		selector, err = selectPods(s.Pods)
	case !d.features.ServiceAccounts:
		at = at.child(accountsField)
		return selectsNone(policy.FeatureNotSupported, gateServiceAccounts.needed())
	default:
		at = at.child(accountsField)
		selector, err = selectAccounts(s.ServiceAccounts)
	}
	if err != nil {
		return selectsNone(policy.InvalidSelector, err.Error())
	}
	return selector
}

// selectNamespaces selects all pods of some namespaces.
func selectNamespaces(s *metav1.LabelSelector) (*policy.PodSelector, error) {
	namespaces, err := metav1.LabelSelectorAsSelector(s)
	return &policy.PodSelector{Namespaces: namespaces, Pods: labels.Everything()}, err
}

// selectPods selects some pods of some namespaces.
func selectPods(p *v1beta1.NamespacedPod) (*policy.PodSelector, error) {
	namespaces, err := metav1.LabelSelectorAsSelector(&p.NamespaceSelector)
	if err != nil {
		return nil, err
	}
	pods, err := metav1.LabelSelectorAsSelector(&p.PodSelector)
	return &policy.PodSelector{Namespaces: namespaces, Pods: pods}, err
}

// accountsField is the field of NPEP-173, in subjects and in peers.
const accountsField = "serviceAccounts"

// selectAccounts selects the pods of some service accounts (CN-43).
func selectAccounts(s *proposed.ServiceAccounts) (*policy.PodSelector, error) {
	namespaces, err := metav1.LabelSelectorAsSelector(&s.NamespaceSelector)
	if err != nil {
		return nil, err
	}
	if len(s.Names) == 0 {
		return nil, errors.New("there is no name of a service account")
	}
	for _, name := range s.Names {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			return nil, fmt.Errorf("%q is not the name of a service account", name)
		}
	}
	return &policy.PodSelector{Namespaces: namespaces, Pods: labels.Everything(), Accounts: s.Names}, nil
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
