package policy

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// Chain is the rules of one endpoint in one direction, in the order in which they are evaluated:
// tiers in order, policies by priority inside a tier, rules as listed inside a policy. The first
// rule that matches decides. Isolation is the last rule of its tier and denies everything. Chains
// are immutable and shared by endpoints that the same policies select.
type Chain struct {
	Rules []Rule
	// Policies are the policies that select the endpoints, in evaluation order, including those
	// without rules. They are for explanations only.
	Policies []*Ref

	needsOnce sync.Once // guards needs
	needs     needs
	indexOnce sync.Once // guards index
	index     *index
}

// prepare returns the index and builds it on first use.
func (c *Chain) prepare() *index {
	c.indexOnce.Do(func() { c.index = newIndex(c.Rules) })
	return c.index
}

// needs is what evaluating a chain needs beyond labels, prefixes and ports.
type needs struct {
	names bool // some rule names domains
	nodes bool // some rule has nodes as peers
	// an administrator's rule may deny traffic to the pod's own node
	host bool
}

// findNeeds returns the chain's needs and computes them on first use.
func (c *Chain) findNeeds() *needs {
	c.needsOnce.Do(func() {
		for i := range c.Rules {
			c.needs.add(&c.Rules[i])
		}
	})
	return &c.needs
}

func (n *needs) add(r *Rule) {
	n.host = n.host || r.MayDenyHost()
	for i := range r.Peers {
		p := &r.Peers[i]
		n.names = n.names || len(p.Domains) > 0
		n.nodes = n.nodes || p.Nodes != nil
	}
}

// MayDenyHost reports whether the rule, which is for egress, may deny traffic to the pod's own
// node. Only administrators' rules can.
func (r *Rule) MayDenyHost() bool {
	return r.Tier != NetworkPolicyTier && r.Action == Deny && (r.AnyPeer || slices.ContainsFunc(r.Peers, func(p Peer) bool {
		return len(p.Blocks) > 0 || p.Nodes != nil
	}))
}

// Rule decides about the packets that match one of its peers and one of its
// ports. The zero Rule matches nothing.
type Rule struct {
	Action Action
	Tier   Tier
	Policy *Ref // the policy that has the rule
	Index  int  // in its policy's list for the direction; Isolation for the rule that isolates

	AnyPeer bool // matches every peer; Peers is ignored
	Peers   []Peer
	AnyPort bool // matches every protocol and port; Ports is ignored
	Ports   []Port
}

// Isolation is the Index of the rule that denies what no other rule of the
// NetworkPolicy tier allows.
const Isolation = -1

// Peer is one item of a rule's from or to list. One of the fields is set; the
// zero Peer matches nothing.
type Peer struct {
	Pods    *PodSelector
	Blocks  []Block         // any peer at these addresses
	Nodes   labels.Selector // the addresses of these nodes
	Domains []Domain        // the addresses that the pod has learned for these names
}

// PodSelector selects pods by their namespaces, their labels and their service accounts.
type PodSelector struct {
	// Namespace restricts the selector to one namespace by name. If it is empty, Namespaces selects
	// by the labels of the Namespace object.
	Namespace  string
	Namespaces labels.Selector
	Pods       labels.Selector
	// Accounts are the names of service accounts, nil for any.
	Accounts []string
}

// Block is a range of addresses with holes.
type Block struct {
	Prefix netip.Prefix
	Except []netip.Prefix
}

// Domain is a domain name in lower case without the trailing dot.
type Domain struct {
	Name string
	// Below matches the names that end in "."+Name, not Name itself.
	Below bool
}

// String returns the name, with "*." before it for Below.
func (d Domain) String() string {
	if d.Below {
		return "*." + d.Name
	}
	return d.Name
}

// Names are the domain names that a pod has learned for an address, in lower case and without the
// trailing dot. They are immutable.
type Names []string

// Host holds the labels of the node that has an address, or of several nodes if they share it.
type Host []labels.Set

// Port is one item of a rule's port list. A numeric item matches the destination ports First to
// Last inclusive. An item with a Name matches the ports that the destination pod declares under
// that name for Proto, or for any protocol if Proto is packet.Unknown.
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
	host     *Host      // nil when the peer's address is no node's
	names    *Names     // names that the subject has learned for the peer's address, nil for none
	scope    scope      // which names may match the peer's address
	dst      *Endpoint  // declares named ports; nil when no known pod
	proto    packet.Proto
	dstPort  uint16

	deferred chan<- *Evaluation // takes expensive evaluations; nil makes them at once
}

// scan evaluates rule by rule and returns the rule that decides about f: the first match that does
// not pass, nil if there is none. For hidden ports see progress. An index must decide the same.
func (c *Chain) scan(f *flow) *Rule {
	var p progress
	for i := range c.Rules {
		if r := &c.Rules[i]; p.reaches(r) && r.matches(f) && p.decides(r, f) {
			return r
		}
	}
	return p.allowed
}

// progress is the state of evaluating a flow rule by rule. The zero progress is before the first
// rule.
//
// It cannot be known whether a rule with ports matches a flow with hidden ports. The flow is denied
// if either answer would deny it: a rule that allows does not match, one that denies does, and for
// one that passes both ways are followed.
type progress struct {
	passed    Tier  // the tier that the flow has left
	mayPassed Tier  // the tier that it may have left
	allowed   *Rule // the rule that allows the flow unless it left a tier before
}

// reaches reports whether r is still to be evaluated.
func (p *progress) reaches(r *Rule) bool { return r.Tier != p.passed }

// decides records that r matches f and reports whether r decides, so that no later rule can change
// the decision. It requires that reaches is true for r.
func (p *progress) decides(r *Rule, f *flow) bool {
	switch {
	case r.Action == Pass && f.proto.Hidden() && !r.AnyPort:
		p.mayPassed = r.Tier
	case r.Action == Pass:
		p.passed = r.Tier
	case r.Action == Allow && r.Tier == p.mayPassed:
		p.passed = r.Tier
		if p.allowed == nil {
			p.allowed = r
		}
	default:
		return true
	}
	return false
}

// deniesAll reports whether c denies every flow with a peer of the family of a. It may miss that some rules
// never match.
func (c *Chain) deniesAll(a netip.Addr) bool {
	if c == nil {
		return false
	}
	passes := make(map[Tier]bool)
	denied := false
	for i := range c.Rules {
		switch r := &c.Rules[i]; {
		case r.Action == Allow:
			return false
		case r.Action == Pass:
			passes[r.Tier] = true
		case r.AnyPort && !passes[r.Tier] && r.hasEveryPeer(a):
			denied = true
		}
	}
	return denied
}

// hasEveryPeer reports whether r matches every peer of the family of a.
func (r *Rule) hasEveryPeer(a netip.Addr) bool {
	return r.AnyPeer || slices.ContainsFunc(r.Peers, func(p Peer) bool {
		return slices.ContainsFunc(p.Blocks, func(b Block) bool {
			return b.Prefix.Bits() == 0 && b.Prefix.Addr().Is4() == a.Is4() && len(b.Except) == 0
		})
	})
}

// NamesDomains reports whether r has domain names as peers.
func (r *Rule) NamesDomains() bool {
	return slices.ContainsFunc(r.Peers, func(p Peer) bool { return len(p.Domains) > 0 })
}

// selectsPods reports whether some peer of r selects pods.
func (r *Rule) selectsPods() bool {
	return slices.ContainsFunc(r.Peers, func(p Peer) bool { return p.Pods != nil })
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
	switch {
	case r.AnyPort:
		return true
	case f.proto.Hidden():
		return r.Action != Allow && r.hasPortOn(f.dst)
	}
	for i := range r.Ports {
		if r.Ports[i].matches(f) {
			return true
		}
	}
	return false
}

// hasPortOn reports whether Ports matches some packet to dst.
func (r *Rule) hasPortOn(dst *Endpoint) bool {
	for i := range r.Ports {
		if r.Ports[i].existsOn(dst) {
			return true
		}
	}
	return false
}

func (p *Peer) matches(f *flow) bool {
	switch {
	case p.Pods != nil:
		return f.peer != nil && p.Pods.Selects(f.peer)
	case p.Nodes != nil:
		return f.host != nil && f.host.selectedBy(p.Nodes)
	case p.Domains != nil:
		return f.names != nil && f.names.matchAny(p.Domains, f.scope)
	}
	for i := range p.Blocks {
		if p.Blocks[i].contains(f.peerAddr) {
			return true
		}
	}
	return false
}

func (h *Host) selectedBy(s labels.Selector) bool {
	for _, node := range *h {
		if s.Matches(node) {
			return true
		}
	}
	return false
}

func (n *Names) matchAny(domains []Domain, within scope) bool {
	for _, d := range domains {
		for _, name := range *n {
			if d.Matches(name) && within.has(name) {
				return true
			}
		}
	}
	return false
}

// Matches reports whether d matches name, which is in lower case without the trailing dot.
func (d Domain) Matches(name string) bool {
	if !d.Below {
		return name == d.Name
	}
	above, ok := strings.CutSuffix(name, d.Name)
	return ok && len(above) > 1 && strings.HasSuffix(above, ".")
}

// Selects reports whether s selects e.
func (s *PodSelector) Selects(e *Endpoint) bool {
	if s.Namespace != "" {
		return s.Namespace == e.Namespace && s.selectsInNamespace(e)
	}
	if !s.Namespaces.Empty() && (!e.NamespaceLabels.Known() || !s.Namespaces.Matches(e.NamespaceLabels)) {
		return false
	}
	return s.selectsInNamespace(e)
}

func (s *PodSelector) selectsInNamespace(e *Endpoint) bool {
	return s.Pods.Matches(e.Labels) && s.HasAccount(e.Account)
}

// HasAccount reports whether s selects pods with a service account.
func (s *PodSelector) HasAccount(name string) bool {
	return s.Accounts == nil || slices.Contains(s.Accounts, name)
}

// SelectsWhole reports whether s selects all pods of the namespaces that it selects.
func (s *PodSelector) SelectsWhole() bool { return s.Pods.Empty() && s.Accounts == nil }

func (b *Block) contains(a netip.Addr) bool {
	if !b.Prefix.Contains(a) {
		return false
	}
	for _, exception := range b.Except {
		if exception.Contains(a) {
			return false
		}
	}
	return true
}

func (p *Port) matches(f *flow) bool {
	if !p.isFor(f.proto) || !f.proto.HasPorts() {
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
		if n.Port == f.dstPort && n.Proto == f.proto && n.Name == p.Name {
			return true
		}
	}
	return false
}

// existsOn reports whether the item matches some packet to dst.
func (p *Port) existsOn(dst *Endpoint) bool {
	if p.Name == "" {
		return p.First <= p.Last
	}
	return dst != nil && slices.ContainsFunc(dst.Ports, func(n NamedPort) bool {
		return n.Name == p.Name && p.isFor(n.Proto)
	})
}

// isFor reports whether the item is for proto.
func (p *Port) isFor(proto packet.Proto) bool {
	return p.Proto == proto || p.Proto == packet.Unknown && p.Name != ""
}
