package policy

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// Chain is the rules of one endpoint in one direction, in the order in which
// they are asked: tiers in order, policies by priority inside a tier, rules as
// listed inside a policy. The first rule that matches decides. Isolation is a
// last rule of its tier that denies everything. Chains are shared by endpoints
// that the same policies select, and never change.
type Chain struct {
	Rules []Rule
	// Policies are those that select the endpoints, in the order in which they
	// are asked. They are for people: some have no rule at all.
	Policies []*Ref

	memory memory // of long chains
}

// Rule decides about the packets that match one of its peers and one of its
// ports. The zero Rule matches nothing.
type Rule struct {
	Verdict Verdict
	Tier    Tier
	Policy  string // of Decision.Policy
	Index   int    // of Decision.Rule; Isolation for the rule that isolates

	AnyPeer bool // matches every peer; Peers is not asked
	Peers   []Peer
	AnyPort bool // matches every protocol and port; Ports is not asked
	Ports   []Port
}

// Isolation is the Index of the rule that denies what no other rule of the
// NetworkPolicy tier allows.
const Isolation = -1

// Peer is one item of a rule's from or to list: pods, or a block of addresses.
// The zero Peer matches nothing.
type Peer struct {
	Pods  *PodSelector
	Block *Block
}

// PodSelector selects pods by where they are and by their labels.
type PodSelector struct {
	// Namespace restricts to one namespace by name. When it is empty,
	// Namespaces selects by the labels of the Namespace object.
	Namespace  string
	Namespaces labels.Selector
	Pods       labels.Selector
}

// Block is a range of addresses with holes.
type Block struct {
	Prefix netip.Prefix
	Except []netip.Prefix
}

// Port is one item of a rule's port list. A numeric item matches the
// destination ports First to Last, both included. An item with a Name matches
// the ports that the destination pod declares under that name for Proto.
type Port struct {
	Proto       packet.Proto
	Name        string
	First, Last uint16
}

// NamedPort is a container port that a pod declares.
type NamedPort struct {
	Name  string
	Proto packet.Proto
	Port  uint16
}

// flow is a packet as one direction sees it.
type flow struct {
	peer     *Endpoint  // nil when the peer's address is no known pod's
	peerAddr netip.Addr // where the peer is
	dst      *Endpoint  // who declares named ports, nil when not a known pod
	proto    packet.Proto
	dstPort  uint16
}

// decide returns the first rule that matches f and does not pass, nil if there
// is none.
func (c *Chain) decide(f *flow) *Rule {
	if len(c.Rules) <= scanLimit {
		return c.scan(f)
	}
	return c.program(f).rule(f.proto, f.dstPort)
}

// scan asks rule by rule. It says what decide means.
func (c *Chain) scan(f *flow) *Rule {
	passed := DefaultTier // no rule is of this tier
	for i := range c.Rules {
		r := &c.Rules[i]
		if r.Tier == passed || !r.matches(f) {
			continue
		}
		if r.Verdict != Pass {
			return r
		}
		passed = r.Tier
	}
	return nil
}

func (r *Rule) matches(f *flow) bool {
	return r.matchesPort(f) && r.matchesPeer(f)
}

func (r *Rule) matchesPeer(f *flow) bool {
	if r.AnyPeer {
		return true
	}
	for i := range r.Peers {
		if r.Peers[i].matches(f) {
			return true
		}
	}
	return false
}

func (r *Rule) matchesPort(f *flow) bool {
	if r.AnyPort {
		return true
	}
	for i := range r.Ports {
		if r.Ports[i].matches(f) {
			return true
		}
	}
	return false
}

func (p *Peer) matches(f *flow) bool {
	if p.Block != nil {
		return p.Block.contains(f.peerAddr)
	}
	return p.Pods != nil && f.peer != nil && p.Pods.matches(f.peer)
}

func (s *PodSelector) matches(e *Endpoint) bool {
	if s.Namespace != "" {
		return s.Namespace == e.Namespace && s.Pods.Matches(e.Labels)
	}
	if !s.Namespaces.Empty() && (e.NamespaceLabels == nil || !s.Namespaces.Matches(e.NamespaceLabels)) {
		return false
	}
	return s.Pods.Matches(e.Labels)
}

func (b *Block) contains(a netip.Addr) bool {
	if !b.Prefix.Contains(a) {
		return false
	}
	for _, hole := range b.Except {
		if hole.Contains(a) {
			return false
		}
	}
	return true
}

func (p *Port) matches(f *flow) bool {
	if p.Proto != f.proto || !f.proto.HasPorts() {
		return false
	}
	if p.Name == "" {
		return p.First <= f.dstPort && f.dstPort <= p.Last
	}
	if f.dst == nil {
		return false
	}
	for i := range f.dst.Ports {
		n := &f.dst.Ports[i]
		if n.Port == f.dstPort && n.Proto == p.Proto && n.Name == p.Name {
			return true
		}
	}
	return false
}
