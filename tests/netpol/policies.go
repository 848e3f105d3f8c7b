package netpol

import (
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// Policy is a policy of any kind that a State has.
type Policy interface {
	runtime.Object
	metav1.Object
}

// PolicyName returns "namespace/name" for a NetworkPolicy, and "Kind/name" for the
// cluster-scoped kinds.
func PolicyName(p Policy) string {
	switch p.(type) {
	case *v1alpha1.AdminNetworkPolicy:
		return "AdminNetworkPolicy/" + p.GetName()
	case *v1alpha1.BaselineAdminNetworkPolicy:
		return "BaselineAdminNetworkPolicy/" + p.GetName()
	case *v1beta1.ClusterNetworkPolicy:
		return "ClusterNetworkPolicy/" + p.GetName()
	case *unstructured.Unstructured:
		return p.GetObjectKind().GroupVersionKind().Kind + "/" + p.GetName()
	}
	return p.GetNamespace() + "/" + p.GetName()
}

// AllPolicies returns the policies of all kinds, and CIDRGroups.
func (s *State) AllPolicies() []Policy {
	var all []Policy
	for _, p := range s.Policies {
		all = append(all, p)
	}
	for _, p := range s.AdminNetworkPolicies {
		all = append(all, p)
	}
	for _, p := range s.BaselineAdminNetworkPolicies {
		all = append(all, p)
	}
	for _, p := range s.ClusterNetworkPolicies {
		all = append(all, p)
	}
	for _, p := range s.Proposed {
		all = append(all, p)
	}
	return all
}

// Apply adds policies of any kind. They replace policies with the same names.
func (s *State) Apply(policies ...Policy) {
	for _, p := range policies {
		switch p := p.(type) {
		case *networkingv1.NetworkPolicy:
			put(&s.Policies, p)
		case *v1alpha1.AdminNetworkPolicy:
			put(&s.AdminNetworkPolicies, p)
		case *v1alpha1.BaselineAdminNetworkPolicy:
			put(&s.BaselineAdminNetworkPolicies, p)
		case *v1beta1.ClusterNetworkPolicy:
			remove(&s.Proposed, PolicyName(p))
			put(&s.ClusterNetworkPolicies, p)
		case *unstructured.Unstructured:
			remove(&s.ClusterNetworkPolicies, PolicyName(p))
			put(&s.Proposed, p)
		default:
			panic(fmt.Sprintf("netpol: %T is not a policy", p))
		}
	}
}

func put[P Policy](list *[]P, policy P) {
	for i, p := range *list {
		if PolicyName(p) == PolicyName(policy) {
			(*list)[i] = policy
			return
		}
	}
	*list = append(*list, policy)
}

// Withdraw deletes policies by the names that PolicyName returns.
func (s *State) Withdraw(names ...string) {
	for _, name := range names {
		found := remove(&s.Policies, name) || remove(&s.AdminNetworkPolicies, name) ||
			remove(&s.BaselineAdminNetworkPolicies, name) || remove(&s.ClusterNetworkPolicies, name) ||
			remove(&s.Proposed, name)
		if !found {
			panic("netpol: no policy " + name)
		}
	}
}

func remove[P Policy](list *[]P, name string) bool {
	i := slices.IndexFunc(*list, func(p P) bool { return PolicyName(p) == name })
	if i >= 0 {
		*list = slices.Delete(*list, i, i+1)
	}
	return i >= 0
}

// withoutPolicies removes the policies of all kinds.
func (s *State) withoutPolicies() {
	s.Policies, s.AdminNetworkPolicies, s.BaselineAdminNetworkPolicies, s.ClusterNetworkPolicies, s.Proposed = nil, nil, nil, nil, nil
}

// kinds returns the features that a backend needs for the policies.
func (s *State) kinds() []Feature {
	var kinds []Feature
	if len(s.AdminNetworkPolicies)+len(s.BaselineAdminNetworkPolicies) > 0 {
		kinds = append(kinds, AdminNetworkPolicies)
	}
	if len(s.ClusterNetworkPolicies)+len(s.Proposed) > 0 {
		kinds = append(kinds, ClusterNetworkPolicies)
	}
	return kinds
}
