package oracle

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// enforcement is the annotation that says whether policies are enforced.
const enforcement = "kube-network-policies.sigs.k8s.io/enforcement"

// Enforced returns the cluster without the policies that are evaluated and not enforced:
// what it decides is what is enforced. What c decides is what would be.
//
// AU-1: a policy that is annotated "audit" is not enforced.
func Enforced(c Cluster) Cluster {
	c.NetworkPolicies = unaudited(c.NetworkPolicies, c.audited)
	c.AdminNetworkPolicies = unaudited(c.AdminNetworkPolicies, c.audited)
	c.BaselineAdminNetworkPolicies = unaudited(c.BaselineAdminNetworkPolicies, c.audited)
	c.ClusterNetworkPolicies = unaudited(c.ClusterNetworkPolicies, c.audited)
	return c
}

func unaudited[P metav1.Object](policies []P, audited func(metav1.Object) bool) []P {
	return slices.DeleteFunc(slices.Clone(policies), func(p P) bool { return audited(p) })
}

// AU-2: the annotation of a namespace is for those of its policies that have none. Kinds
// without a namespace have only their own.
//
// AU-3: any other value enforces.
func (c Cluster) audited(policy metav1.Object) bool {
	if value, ok := policy.GetAnnotations()[enforcement]; ok {
		return value == "audit"
	}
	for _, ns := range c.Namespaces {
		if policy.GetNamespace() != "" && ns.Name == policy.GetNamespace() {
			return ns.Annotations[enforcement] == "audit"
		}
	}
	return false
}
