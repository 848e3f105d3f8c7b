package policy

import (
	"net/netip"
	"slices"
)

// FirstID is the lowest ID of a pod. 0 means no pod; packages that store IDs may give the other
// lower numbers a meaning.
const FirstID = 16

// Endpoint is a pod that has addresses of its own, of this node or another. It is immutable once it
// is part of a snapshot.
type Endpoint struct {
	Namespace, Name string
	// ID distinguishes the pod from earlier and later pods with its name or addresses, and survives
	// a restart of the agent. It is at least FirstID.
	ID uint32
	// Version must be a new one (NewVersion) whenever Namespace, Account, Labels, NamespaceLabels or
	// Ports change. If it is nil, evaluations of the endpoint are not cached.
	Version *Version
	Account string // the name of the service account
	Labels  Labels
	// NamespaceLabels are the labels of the Namespace object. If the object is not known they are
	// the zero Labels, which only an empty selector matches.
	NamespaceLabels Labels
	Ports           []NamedPort // in the order of SortPorts
	// Ingress and Egress are nil if no policy selects the pod in that direction, and for pods of
	// other nodes, which evaluate them.
	Ingress, Egress *Chain
	// AwaitsStatus is set for a pod of this node while its status lacks its addresses: other nodes,
	// which read them there, cannot apply an administrator's rule that may deny its packets by its
	// labels.
	AwaitsStatus bool
	// Dispute is set for an address whose pod is not certain. Then no other field is set.
	Dispute *Dispute
	// Rejects is set if packets that policies of the pod deny are answered. It does not affect
	// decisions.
	Rejects bool
	// Audited is the pod as it would be if audited policies were enforced, nil if no audited policy
	// selects it.
	Audited *Endpoint
}

// String returns "namespace/name".
func (e *Endpoint) String() string { return e.Namespace + "/" + e.Name }

// auditedIn reports whether an audited policy selects the pod e in direction d. e may be nil.
func (e *Endpoint) auditedIn(d Direction) bool {
	return e != nil && e.Audited != nil && e.Audited.chain(d) != e.chain(d)
}

func (e *Endpoint) chain(d Direction) *Chain {
	if d == Ingress {
		return e.Ingress
	}
	return e.Egress
}

// Dispute is who may have an address about which the evidence disagrees. A packet is decided as for
// each of them, and denied if it is denied for one.
type Dispute struct {
	// Pods are pods of other nodes, each with a claim that nothing nearer contradicts.
	Pods []*Endpoint
	// NoPod is set if the address may be a Node's and no pod's, NoHost if it may be no Node's
	// although the status of one has it.
	NoPod, NoHost bool
	// Here is set if a new pod of this node may have the address, unless the node routes it to
	// another one (Query.Routes).
	Here bool
}

// Equal reports whether d and o are about the same pods. Nil equals nil alone.
func (d *Dispute) Equal(o *Dispute) bool {
	if d == nil || o == nil {
		return d == o
	}
	return slices.Equal(d.Pods, o.Pods) && d.NoPod == o.NoPod && d.NoHost == o.NoHost && d.Here == o.Here
}

// Model is what a snapshot is made of.
type Model struct {
	// Endpoints holds every live pod of the cluster under each of its addresses. Host-network pods
	// are not endpoints: they are treated as their node.
	Endpoints Endpoints
	// Local are this node's pods, nil if it has none.
	Local *Local
	Unknown
	// Hosts holds the nodes under each of their addresses. It is nil unless a policy names nodes or
	// domains.
	Hosts map[netip.Addr]*Host
	// Own is the evaluating node, nil if it is not known or Hosts is nil. Packets with ToHost match
	// it by any address, because a node has addresses that no API object shows.
	Own      *Host
	Findings []Finding
	// ForwardedSources holds, by namespace, the sources of packets that its pods may forward. No
	// pod has an address in them.
	ForwardedSources map[string][]netip.Prefix
	// Deferred takes the evaluations that are too slow for the packet path, for a goroutine that
	// runs them. Nil makes them at once.
	Deferred chan<- *Evaluation
	// Audit is what would differ if audited policies were enforced, nil if no policy is audited.
	// The other fields ignore audited policies.
	Audit *Audit
}

// Unknown describes where pods may be that are not known, and whether that matters to any policy.
type Unknown struct {
	// Ranges are the address ranges of this node's pods.
	Ranges []netip.Prefix
	// Isolating reports for each direction whether some policy of the cluster may deny packets of
	// an unknown pod. If so, an address in Ranges without an endpoint counts as a pod too new to be
	// known, and its packets wait.
	Isolating [directions]bool
	// ToHost reports whether some policy may deny what such a pod sends to its own node.
	ToHost bool
	// PodRanges are the ranges of the pods of all nodes, nil unless some policy denies or passes
	// pods as peers, or names domains.
	PodRanges *PodRanges
	// Newcomers are pods of other nodes without an address: all of them, or more than MaxNewcomers.
	Newcomers []*Endpoint
}

// MaxNewcomers is the most pods without an address that are evaluated for one packet. If there are
// more, any labels are assumed.
const MaxNewcomers = 16

// Audit has the fields of a Model as they would be if audited policies were enforced. What differs
// by pod is in Endpoint.Audited.
type Audit struct {
	Isolating [directions]bool
	PodRanges *PodRanges
}
