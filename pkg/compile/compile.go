// Package compile turns API objects into a *policy.Snapshot. The meaning of
// every API field lives here, one file for each API kind. It is pure: the same
// objects give the same snapshot, and no object is modified. Nothing is an
// error: what cannot be honoured becomes a policy.Finding and fails closed.
//
// Numbers such as NP-27 refer to docs/semantics.md.
package compile

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Features are the parts of the API that can be switched off, so that testers
// of Kubernetes see what a provider without them looks like. What is off is a
// finding and fails closed.
type Features struct {
	EndPort bool // port ranges in NetworkPolicy
	SCTP    bool // protocol SCTP in port lists
	// SCTPUntracked adds a finding to each port of SCTP: the kernel does not
	// track its connections (NP-42). What is enforced does not change by it.
	SCTPUntracked bool
}

// AllFeatures returns the default: everything on.
func AllFeatures() Features { return Features{EndPort: true, SCTP: true} }

// Input is what a node knows of its cluster. The objects are read only and in
// any order.
type Input struct {
	// NodeName is the node that judges: its pods get chains.
	NodeName string
	// AllNodes compiles what all nodes judge into one snapshot: every pod gets
	// chains and the pod ranges of every node count, NodeName means nothing. A
	// packet's verdict is then that of the source's node and the destination's
	// node together. It is for tools; what a node lets pass without asking, its
	// own traffic, is not known here.
	AllNodes        bool
	Features        Features
	Namespaces      []*corev1.Namespace
	Pods            []*corev1.Pod
	Nodes           []*corev1.Node
	NetworkPolicies []*networkingv1.NetworkPolicy
}

// Compile returns the snapshot of in.
func Compile(in Input) *policy.Snapshot {
	namespaces := make(map[string]*corev1.Namespace, len(in.Namespaces))
	for _, ns := range in.Namespaces {
		namespaces[ns.Name] = ns
	}
	policies, findings := compileNetworkPolicies(in.NetworkPolicies, in.Features)
	e := compileEndpoints(in.Pods, namespaces, in.judges, newChains(policies))
	m := policy.Model{
		Endpoints: e.byAddr,
		Local:     e.local,
		Ranges:    podRanges(in.Nodes, in.judges),
		Findings:  findings,
	}
	for _, p := range policies {
		m.Isolating[policy.Ingress] = m.Isolating[policy.Ingress] || p.ingress.isolates
		m.Isolating[policy.Egress] = m.Isolating[policy.Egress] || p.egress.isolates
	}
	return policy.New(m)
}

// judges tells whether what happens on node is judged by the snapshot.
func (in *Input) judges(node string) bool { return in.AllNodes || node == in.NodeName }

// podRanges returns the ranges out of which the pods of local nodes get their
// addresses, as far as the Node objects tell. Some network plugins allocate
// from elsewhere; then it is empty or matches nothing.
func podRanges(nodes []*corev1.Node, local func(node string) bool) []netip.Prefix {
	var ranges []netip.Prefix
	for _, n := range nodes {
		if !local(n.Name) {
			continue
		}
		cidrs := n.Spec.PodCIDRs
		if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
			cidrs = []string{n.Spec.PodCIDR}
		}
		for _, cidr := range cidrs {
			if p, err := parsePrefix(cidr); err == nil {
				ranges = append(ranges, p)
			}
		}
	}
	slices.SortFunc(ranges, comparePrefix)
	return slices.Compact(ranges)
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
