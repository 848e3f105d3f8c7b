package policy

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// Endpoint is a pod that has addresses of its own, of this node or another.
// It never changes once it is part of a snapshot.
type Endpoint struct {
	Namespace, Name string
	Labels          labels.Set
	// NamespaceLabels are those of the Namespace object; nil when the object is
	// not known, which only an empty selector matches.
	NamespaceLabels labels.Set
	Ports           []NamedPort
	// Ingress and Egress are nil where no policy selects the pod, and for every
	// pod of another node: its own node judges it.
	Ingress, Egress *Chain
}

// String returns "namespace/name".
func (e *Endpoint) String() string { return e.Namespace + "/" + e.Name }

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
	Endpoints map[netip.Addr]*Endpoint
	// Local are the addresses of Endpoints that belong to pods of this node.
	Local []netip.Addr
	// Ranges are the address ranges out of which this node's pods get theirs.
	Ranges []netip.Prefix
	// Isolating tells for each direction whether some policy of the cluster
	// isolates pods. Where one does, an address of Ranges that is no endpoint is
	// a pod too new to be known, and nothing is allowed for it.
	Isolating [directions]bool
	Findings  []Finding
}

// Snapshot is a compiled cluster as one node judges it. It is immutable; all
// methods may be called from any goroutine.
type Snapshot struct {
	m Model
}

// New returns the snapshot of m, which the caller must not change any more.
func New(m Model) *Snapshot {
	return &Snapshot{m: m}
}

// Evaluate answers whether p may pass: the source's egress chain and the
// destination's ingress chain must both allow it, as far as the pods are local.
// It does not allocate.
func (s *Snapshot) Evaluate(p packet.Packet) Decision {
	srcAddr, dstAddr := p.Src.Addr(), p.Dst.Addr()
	src, dst := s.m.Endpoints[srcAddr], s.m.Endpoints[dstAddr]
	if src != nil && src == dst {
		return Decision{Verdict: Allow, Reason: Hairpin}
	}
	out := s.judge(Egress, src, srcAddr, flow{peer: dst, peerAddr: dstAddr, dst: dst, proto: p.Proto, dstPort: p.Dst.Port()})
	in := s.judge(Ingress, dst, dstAddr, flow{peer: src, peerAddr: srcAddr, dst: dst, proto: p.Proto, dstPort: p.Dst.Port()})
	switch {
	case out.deniesForGood():
		return out
	case in.deniesForGood():
		return in
	case out.Verdict == Deny:
		return out
	case in.Reason == NotSelected:
		return out
	}
	return in
}

// deniesForGood tells a denial from one that a moment's patience may change,
// once the pod is known.
func (d Decision) deniesForGood() bool {
	return d.Verdict == Deny && d.Reason != UnknownPod
}

// judge asks the chain of subject, who is at addr, about f.
func (s *Snapshot) judge(d Direction, subject *Endpoint, addr netip.Addr, f flow) Decision {
	if subject == nil {
		if s.m.Isolating[d] && s.inRanges(addr) {
			return Decision{Verdict: Deny, Direction: d, Reason: UnknownPod}
		}
		return Decision{Verdict: Allow, Direction: d, Reason: NotSelected}
	}
	chain := subject.chain(d)
	if chain == nil {
		return Decision{Verdict: Allow, Direction: d, Reason: NotSelected}
	}
	rule := chain.decide(&f)
	switch {
	case rule == nil:
		return Decision{Verdict: Allow, Direction: d, Reason: Unmatched}
	case rule.Index != Isolation:
		return Decision{Verdict: rule.Verdict, Direction: d, Tier: rule.Tier, Reason: RuleMatched, Policy: rule.Policy, Rule: rule.Index}
	case f.peer == nil && s.inRanges(f.peerAddr):
		return Decision{Verdict: Deny, Direction: d, Tier: rule.Tier, Reason: UnknownPod, Policy: rule.Policy}
	}
	return Decision{Verdict: rule.Verdict, Direction: d, Tier: rule.Tier, Reason: Isolated, Policy: rule.Policy}
}

func (s *Snapshot) inRanges(a netip.Addr) bool {
	for _, r := range s.m.Ranges {
		if r.Contains(a) {
			return true
		}
	}
	return false
}

// Endpoint returns the pod at a, nil if there is none.
func (s *Snapshot) Endpoint(a netip.Addr) *Endpoint { return s.m.Endpoints[a] }

// Len returns the number of addresses that pods have.
func (s *Snapshot) Len() int { return len(s.m.Endpoints) }

// Local returns the addresses of this node's pods in ascending order.
func (s *Snapshot) Local() []netip.Addr {
	return slices.SortedFunc(slices.Values(s.m.Local), netip.Addr.Compare)
}

// Selected returns, in ascending order, the addresses of this node's pods that
// some policy selects in direction d: those whose packets must be judged.
func (s *Snapshot) Selected(d Direction) []netip.Addr {
	var selected []netip.Addr
	for _, a := range s.m.Local {
		if s.m.Endpoints[a].chain(d) != nil {
			selected = append(selected, a)
		}
	}
	slices.SortFunc(selected, netip.Addr.Compare)
	return selected
}

// Ranges returns the ranges in which an address that is no endpoint must be
// judged, because some policy isolates in direction d.
func (s *Snapshot) Ranges(d Direction) []netip.Prefix {
	if !s.m.Isolating[d] {
		return nil
	}
	return slices.Clone(s.m.Ranges)
}

// Findings returns what of the policies could not be honoured, ordered by
// policy and field.
func (s *Snapshot) Findings() []Finding { return slices.Clone(s.m.Findings) }
