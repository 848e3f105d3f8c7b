package policycache

import (
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// The kinds, as they are named in metrics and logs.
var (
	kindNamespace                  = compile.KindNamespace.Name
	kindNetworkPolicy              = compile.KindNetworkPolicy.Name
	kindNode                       = compile.KindNode.Name
	kindPod                        = compile.KindPod.Name
	kindAdminNetworkPolicy         = compile.KindAdminNetworkPolicy.Name
	kindBaselineAdminNetworkPolicy = compile.KindBaselineAdminNetworkPolicy.Name
	kindClusterNetworkPolicy       = compile.KindClusterNetworkPolicy.Name
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

// any reports whether a kind is enabled.
func (k Kinds) any() bool { return k != Kinds{} }

// enabled returns the kinds that are enabled.
func (k Kinds) enabled() []*compile.Kind {
	var kinds []*compile.Kind
	if k.AdminNetworkPolicy {
		kinds = append(kinds, compile.KindAdminNetworkPolicy)
	}
	if k.BaselineAdminNetworkPolicy {
		kinds = append(kinds, compile.KindBaselineAdminNetworkPolicy)
	}
	if k.ClusterNetworkPolicy {
		kinds = append(kinds, compile.KindClusterNetworkPolicy)
	}
	return kinds
}

// Has reports whether policies of a kind are watched.
func (k Kinds) Has(kind *compile.Kind) bool {
	return kind.Flag == "" || slices.Contains(k.enabled(), kind)
}
