package oracle

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// enforcementOf returns the annotation that says whether policies are enforced.
//
// AU-8: without it, that of its former name counts. No other name does.
func enforcementOf(o metav1.Object) (value string, ok bool) {
	if value, ok = o.GetAnnotations()["kube-network-policies.x-k8s.io/enforcement"]; !ok {
		value, ok = o.GetAnnotations()["kube-network-policies.sigs.k8s.io/enforcement"]
	}
	return value, ok
}

// Enforced returns the cluster without audited policies. Its decisions are enforced; those of c are
// what would be enforced without auditing.
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

// AU-2: the annotation of a namespace applies to its policies without their own. Cluster-scoped
// policies have only their own.
//
// AU-3: any other value enforces.
func (c Cluster) audited(policy metav1.Object) bool {
	if value, ok := enforcementOf(policy); ok {
		return value == "audit"
	}
	for _, ns := range c.Namespaces {
		if policy.GetNamespace() != "" && ns.Name == policy.GetNamespace() {
			value, _ := enforcementOf(ns)
			return value == "audit"
		}
	}
	return false
}
