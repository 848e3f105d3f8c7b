package policy

import "net/netip"

// FirstID is the least ID of a pod. Lower numbers stand for what is no pod: 0 for none, and
// others that those who store IDs choose.
const FirstID = 16

// Endpoint is a pod that has addresses of its own, of this node or another.
// It never changes once it is part of a snapshot.
type Endpoint struct {
	Namespace, Name string
	// ID distinguishes the pod from others that have its name or its addresses at
	// another time, now and after a restart. It is at least FirstID.
	ID uint32
	// Version is another one whenever Namespace, Labels, NamespaceLabels or Ports are
	// others (NewVersion). With nil nothing is remembered of the endpoint.
	Version *Version
	Labels  Labels
	// NamespaceLabels are those of the Namespace object; the zero Labels when the
	// object is not known, which only an empty selector matches.
	NamespaceLabels Labels
	Ports           []NamedPort // in the order of SortPorts
	// Ingress and Egress are nil where no policy selects the pod, and for every
	// pod of another node: its own node evaluates it.
	Ingress, Egress *Chain
	// AwaitsStatus is set while other nodes do not know the addresses of this node's
	// pod, and an administrator's rule may deny there what it sends, by its labels.
	AwaitsStatus bool
	// Unlisted reports for each direction whether pods that rules of the chain name are not
	// listed yet: an address that is no known pod's may be one of theirs.
	Unlisted [directions]bool
	// Doubtful is set for a pod of another node that its watch no longer has: it is gone, or
	// has other labels. It counts as a pod that is not listed yet.
	Doubtful bool
	// Audited is the pod as it would be if audited policies were enforced. It is nil
	// where no audited policy selects the pod.
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

// Model is what a snapshot is made of.
type Model struct {
	// Endpoints holds every live pod of the cluster under each of its
	// addresses. Host-network pods are no endpoints: they are their node.
	Endpoints Endpoints
	// Local are this node's pods, nil if it has none.
	Local *Local
	// Ranges are the address ranges out of which this node's pods get theirs.
	Ranges []netip.Prefix
	// Isolating reports for each direction whether some policy of the cluster may
	// deny something to a pod of which nothing is known. Where one does, an address
	// of Ranges that is no endpoint is a pod too new to be known, and nothing is
	// allowed for it.
	Isolating [directions]bool
	// ToHost reports whether some policy may deny what such a pod sends to its own node.
	ToHost bool
	// PodRanges are those of the pods of all nodes, nil unless some policy denies
	// or passes packets because their peer is a pod, or names domains.
	PodRanges *PodRanges
	// Newcomers are pods of other nodes that have no address yet, all of them or more
	// than MaxNewcomers.
	Newcomers []*Endpoint
	// Hosts holds the nodes under each of their addresses, if any policy names
	// nodes or domains.
	Hosts map[netip.Addr]*Host
	// Own is the evaluating node itself, nil if it is not known or Hosts is nil.
	// What is for the node itself is for it, whatever the address: a node has addresses
	// that no object shows.
	Own      *Host
	Findings []Finding
	// ForwardedSources are, for each namespace that has any, the sources of packets that
	// its pods may forward. None is an address of a pod.
	ForwardedSources map[string][]netip.Prefix
	// Memory is shared by the snapshots of a cluster. Nil gives the snapshot one of
	// its own.
	Memory *Memory
	// Audit is what would be otherwise if audited policies were enforced, nil if no
	// policy is audited. Without them, policies are not in the rest of the Model.
	Audit *Audit
}

// Audit has the fields of a Model as they would be if audited policies were enforced.
// What else depends on these policies is in Endpoint.Audited.
type Audit struct {
	Isolating [directions]bool
	PodRanges *PodRanges
}

// MaxNewcomers is how many pods without an address are evaluated for one packet. If there
// are more, their labels may be any.
const MaxNewcomers = 16
