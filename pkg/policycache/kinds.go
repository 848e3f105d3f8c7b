package policycache

import (
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// The kinds, as they are named in metrics and logs.
const (
	kindNamespace                  = string(compile.KindNamespace)
	kindNetworkPolicy              = string(compile.KindNetworkPolicy)
	kindNode                       = string(compile.KindNode)
	kindPod                        = string(compile.KindPod)
	kindAdminNetworkPolicy         = string(compile.KindAdminNetworkPolicy)
	kindBaselineAdminNetworkPolicy = string(compile.KindBaselineAdminNetworkPolicy)
	kindClusterNetworkPolicy       = string(compile.KindClusterNetworkPolicy)
)

// Kinds are the administrators' kinds of policy that are watched. Their peers
// may be any nodes, so with one of them all nodes are watched, and not only the
// own. A kind that the Source does not serve is waited for: what is known
// without it is in force.
type Kinds struct {
	AdminNetworkPolicy         bool // v1alpha1
	BaselineAdminNetworkPolicy bool // v1alpha1
	ClusterNetworkPolicy       bool // v1alpha2
}

// any tells whether a kind is enabled.
func (k Kinds) any() bool { return k != Kinds{} }

// names returns the kinds that are enabled.
func (k Kinds) names() []string {
	var names []string
	if k.AdminNetworkPolicy {
		names = append(names, kindAdminNetworkPolicy)
	}
	if k.BaselineAdminNetworkPolicy {
		names = append(names, kindBaselineAdminNetworkPolicy)
	}
	if k.ClusterNetworkPolicy {
		names = append(names, kindClusterNetworkPolicy)
	}
	return names
}

func (k Kinds) has(kind string) bool { return slices.Contains(k.names(), kind) }
