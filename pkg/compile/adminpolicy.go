package compile

import (
	"cmp"
	"math"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// What the kinds of administrators' policies have in common. They say the same
// in slightly other words; here they are all said in those of v1alpha2.

// adminPolicy is an administrator's policy whose rules are ready to be put into
// chains.
type adminPolicy struct {
	id              uint64 // see chains
	ref             policy.Ref
	spec            any // of the object, by pointer
	tier            policy.Tier
	priority        int32
	subject         *policy.PodSelector // nil selects nothing
	ingress, egress []policy.Rule
	findings        []policy.Finding
}

// compare orders policies as they are asked: tier, priority, and for equal ones
// kind and name (CN-1, CN-2, CN-7, CN-8).
func (p *adminPolicy) compare(o *adminPolicy) int {
	return cmp.Or(
		cmp.Compare(p.tier, o.tier),
		cmp.Compare(p.priority, o.priority),
		cmp.Compare(p.ref.Kind, o.ref.Kind),
		cmp.Compare(p.ref.Name, o.ref.Name),
	)
}

// same tells whether two objects of one kind and name say the same.
func (p *adminPolicy) same(o *adminPolicy) bool {
	return p.ref == o.ref && reflect.DeepEqual(p.spec, o.spec)
}

// lastPriority puts the BaselineAdminNetworkPolicy, which has no priority,
// behind every ClusterNetworkPolicy of its tier (CN-8).
const lastPriority = math.MaxInt32

func (p *adminPolicy) rules(d policy.Direction) []policy.Rule {
	if d == policy.Ingress {
		return p.ingress
	}
	return p.egress
}

// selects tells whether the policy has something to say about the traffic of e
// in direction d. Without rules for the direction it has not (CN-6).
func (p *adminPolicy) selects(e *policy.Endpoint, d policy.Direction) bool {
	return p.subject != nil && len(p.rules(d)) > 0 && p.subject.Selects(e)
}

// denies tells whether some rule of direction d denies.
func (p *adminPolicy) denies(d policy.Direction) bool {
	return p.subject != nil && slices.ContainsFunc(p.rules(d), func(r policy.Rule) bool { return r.Action == policy.Deny })
}

// namesNodes tells whether some rule has nodes for peers.
func (p *adminPolicy) namesNodes() bool {
	return slices.ContainsFunc(p.egress, func(r policy.Rule) bool {
		return slices.ContainsFunc(r.Peers, func(peer policy.Peer) bool { return peer.Nodes != nil })
	})
}

// stopsPods tells whether some rule of egress denies or passes pods.
func (p *adminPolicy) stopsPods() bool {
	return slices.ContainsFunc(p.egress, func(r policy.Rule) bool {
		return r.Action != policy.Allow && slices.ContainsFunc(r.Peers, func(peer policy.Peer) bool { return peer.Pods != nil })
	})
}

// compileAdminPolicy compiles a policy of any of the kinds.
func compileAdminPolicy(o any, features Features) *adminPolicy {
	switch o := o.(type) {
	case *v1alpha1.AdminNetworkPolicy:
		return compileAdminNetworkPolicy(o, features)
	case *v1alpha1.BaselineAdminNetworkPolicy:
		return compileBaselineAdminNetworkPolicy(o, features)
	default:
		return compileClusterNetworkPolicy(o.(*v1alpha2.ClusterNetworkPolicy), features)
	}
}

// subject compiles whom a policy is about (CN-10: pods with a network of their
// own, which endpoints are). One that cannot be read selects nothing.
func (d *diagnosis) subject(s v1alpha2.ClusterNetworkPolicySubject) *policy.PodSelector {
	at := specPath.Child("subject")
	var selector *policy.PodSelector
	var err error
	switch {
	case s.Namespaces != nil && s.Pods == nil:
		at = at.Child("namespaces")
		selector, err = selectNamespaces(s.Namespaces)
	case s.Pods != nil && s.Namespaces == nil:
		at = at.Child("pods")
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
