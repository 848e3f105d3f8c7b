// Package compile turns API objects, one at a time, into the parts of a policy.Snapshot: a policy
// into rules, a pod into an endpoint. It owns the meaning of every API field, and the table of the
// kinds of policy with one file for each. It is pure: the same object always gives the same result,
// and no object is modified. There are no errors: a part that cannot be honoured becomes a
// policy.Finding and fails closed. Package clusterstate makes snapshots from the results.
//
// Numbers such as NP-27 refer to docs/semantics.md.
package compile

// Features are the parts of the API that can be enabled and disabled. The use of a disabled feature
// is a finding and fails closed.
type Features struct {
	EndPort     bool // port ranges in NetworkPolicy
	SCTP        bool // protocol SCTP in port lists
	Nodes       bool // nodes as peers of administrators' policies
	DomainNames bool // domain names as peers of administrators' policies
	// CIDRGroups are named sets of networks as peers (NPEP-182).
	CIDRGroups bool
	// IngressByAddress are networks and nodes as peers of ingress (NPEP-127).
	IngressByAddress bool
	// MatchAll is the peer that is every address (NPEP-248).
	MatchAll bool
	// ServiceAccounts are service accounts in subjects and peers (NPEP-173).
	ServiceAccounts bool
	// PodNetworkReadiness is the readiness gate of KEP-5709. It is about pods, not policies.
	PodNetworkReadiness bool
	// SCTPUntracked adds a finding to each SCTP port: the kernel does not track SCTP connections
	// (NP-42). It does not change what is enforced.
	SCTPUntracked bool
}

// AllFeatures returns the default: every feature that the API has, and none that is only proposed.
func AllFeatures() Features {
	var f Features
	for _, g := range Gates {
		*g.Field(&f) = g.Default()
	}
	return f
}
