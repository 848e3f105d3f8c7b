// Package compile turns API objects, one at a time, into what a policy.Snapshot
// is made of: a policy into rules, a pod into an endpoint. The meaning of every
// API field lives here, and the table of the kinds of policy with one file for
// each. It is pure: the same object always gives the same, and no object is
// modified. Nothing is an error: what cannot be honoured becomes a policy.Finding
// and fails closed. Package clusterstate makes snapshots of the results.
//
// Numbers such as NP-27 refer to docs/semantics.md.
package compile

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
