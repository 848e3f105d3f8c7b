// Package compile turns API objects into a *policy.Snapshot. The meaning of
// every API field lives here, one file for each API kind. It is pure: the same
// objects give snapshots that judge alike, and no object is modified. Nothing is
// an error: what cannot be honoured becomes a policy.Finding and fails closed.
//
// Numbers such as NP-27 refer to docs/semantics.md.
package compile

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Features are the parts of the API that can be switched off, so that testers
// of Kubernetes see what a provider without them looks like. What is off is a
// finding and fails closed.
type Features struct {
	EndPort     bool // port ranges in NetworkPolicy
	SCTP        bool // protocol SCTP in port lists
	Nodes       bool // nodes as peers of administrators' policies
	DomainNames bool // domain names as peers of administrators' policies
	// SCTPUntracked adds a finding to each port of SCTP: the kernel does not
	// track its connections (NP-42). What is enforced does not change by it.
	SCTPUntracked bool
}

// AllFeatures returns the default: everything on.
func AllFeatures() Features {
	return Features{EndPort: true, SCTP: true, Nodes: true, DomainNames: true}
}

// Input is all that a node knows of its cluster, for one snapshot of it. The
// objects are read only and in any order.
type Input struct {
	NodeName        string // as in Config
	AllNodes        bool   // as in Config
	Features        Features
	Namespaces      []*corev1.Namespace
	Pods            []*corev1.Pod
	Nodes           []*corev1.Node
	NetworkPolicies []*networkingv1.NetworkPolicy

	AdminNetworkPolicies         []*v1alpha1.AdminNetworkPolicy
	BaselineAdminNetworkPolicies []*v1alpha1.BaselineAdminNetworkPolicy
	ClusterNetworkPolicies       []*v1alpha2.ClusterNetworkPolicy
}

// Compile returns the snapshot of in.
func Compile(in Input) *policy.Snapshot { return fill(in).Snapshot() }

// fill returns the Cluster of in.
func fill(in Input) *Cluster {
	c := NewCluster(Config{NodeName: in.NodeName, AllNodes: in.AllNodes, Features: in.Features})
	setAll(c, in.Namespaces)
	setAll(c, in.Nodes)
	setAll(c, in.NetworkPolicies)
	setAll(c, in.AdminNetworkPolicies)
	setAll(c, in.BaselineAdminNetworkPolicies)
	setAll(c, in.ClusterNetworkPolicies)
	for _, p := range in.Pods {
		c.Set(NewPod(p))
	}
	return c
}

func setAll[O any](c *Cluster, objects []O) {
	for _, o := range objects {
		c.Set(o)
	}
}
