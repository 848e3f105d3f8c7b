package policy

import (
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// Snapshot is a compiled cluster as one node evaluates it. It is immutable; all
// methods may be called from any goroutine.
type Snapshot struct {
	m Model
	// audit is the same cluster with its audited policies enforced, nil if none is audited.
	audit *Snapshot
	// audits marks that snapshot: its endpoints are the audited ones.
	audits bool
}

// New returns the snapshot of m, which the caller must not change any more.
func New(m Model) *Snapshot {
	if m.Local == nil {
		m.Local = &Local{}
	}
	if m.Memory == nil {
		m.Memory = NewMemory(DefaultMemory)
	}
	s := &Snapshot{m: m}
	if m.Audit != nil {
		m.Isolating, m.PodRanges, m.Audit = m.Audit.Isolating, m.Audit.PodRanges, nil
		s.audit = &Snapshot{m: m, audits: true}
	}
	return s
}

// Audit returns the same cluster as if audited policies were enforced, nil if no policy is
// audited. It is for decisions: which packets are evaluated is the same in both.
func (s *Snapshot) Audit() *Snapshot { return s.audit }

// Prepare makes what judging needs of the policies, so that the first packets do
// not wait for it.
func (s *Snapshot) Prepare() {
	for _, a := range s.m.Local.all {
		e := s.Endpoint(a)
		for d := range directions {
			if chain := e.chain(Direction(d)); chain != nil {
				chain.prepare()
			}
		}
	}
	if s.audit != nil {
		s.audit.Prepare()
	}
}

// Query is a packet and what the kernel and the pods know of it.
type Query struct {
	Packet packet.Packet
	// ToHost reports whether the destination is an address of the evaluating node
	// itself. Then only the source's policies apply.
	ToHost bool
	// Learned has the domain names that pods have learned; nil knows none.
	Learned Learned
	// AwaitSource returns UnknownSource where the decision may be another one as soon
	// as the source is known: it may be a pod of another node. Without it, such a source
	// is evaluated by address.
	AwaitSource bool
	// Defer leaves what takes long to Memory.Deferred. Where the decision depends
	// on it, its reason is NotEvaluated.
	Defer bool

	anyNewcomer bool // as if there were more than MaxNewcomers
}

// Learned has the domain names of addresses.
type Learned interface {
	// Names returns the names under which the pod at pod knows addr, nil if
	// there are none. It is called only for pods whose policies name domains,
	// from any goroutine.
	Names(pod, addr netip.Addr) *Names
}

// exempt returns why NetworkPolicy always allows the packet, NotSelected if it
// does not. A pod's packet to itself is seen here only if it went through a
// Service; else it never leaves the pod.
func (q *Query) exempt(src, dst *end) Reason {
	switch {
	case q.ToHost:
		return OwnNode
	case src.endpoint != nil && src.endpoint == dst.endpoint:
		return Hairpin
	}
	return NotSelected
}

// end is the source or the destination of a packet.
type end struct {
	addr     netip.Addr
	endpoint *Endpoint // nil if addr is no known pod's
	doubtful bool      // addr is, or was, that of a pod of which no more is known
}

// ends sets src and dst, which are zero, to the ends of p. They, and flows, are filled in
// place: to return them would copy them twice for each packet.
func (s *Snapshot) ends(p *packet.Packet, src, dst *end) {
	s.find(src, p.Src.Addr())
	s.find(dst, p.Dst.Addr())
}

// find sets e, which is zero, to the end of a packet at a.
func (s *Snapshot) find(e *end, a netip.Addr) {
	e.addr = a
	switch endpoint := s.Endpoint(a); {
	case endpoint == nil:
	case endpoint.Doubtful:
		e.doubtful = true
	default:
		e.endpoint = endpoint
	}
}

// Evaluate decides about a packet: the source's egress chain and the destination's
// ingress chain must both allow it, as far as the pods are local. It does not
// allocate.
func (s *Snapshot) Evaluate(q Query) Decision {
	var src, dst end
	s.ends(&q.Packet, &src, &dst)
	out := s.evaluate(Egress, &q, &src, &dst)
	if q.ToHost {
		return out
	}
	if out.Action == Allow && src.endpoint != nil && src.endpoint.AwaitsStatus && (src.endpoint.Unlisted[Egress] || s.mayBeElsewhere(&dst)) {
		out = Decision{Action: Deny, Direction: Egress, Reason: UnknownPod}
	}
	in := s.evaluate(Ingress, &q, &src, &dst)
	switch {
	case out.isFinalDenial():
		return out
	case in.isFinalDenial():
		return in
	case out.Action == Deny:
		return out
	case in.Reason == NotSelected:
		return out
	}
	return in
}

// EvaluateLate decides about a packet of a connection of which it is not known which end has
// opened it: both directions must be allowed, as q has it and with the ends swapped. It returns
// the query that the decision is about. A packet to the node itself is evaluated as it is: the
// node may always connect to its pods.
func (s *Snapshot) EvaluateLate(q Query) (Decision, Query) {
	d := s.Evaluate(q)
	if q.ToHost || d.isFinalDenial() {
		return d, q
	}
	swapped := q
	swapped.Packet = q.Packet.Swapped()
	if back := s.Evaluate(swapped); back.isFinalDenial() || d.Allowed() && (!back.Allowed() || d.Reason == NotSelected) {
		return back, swapped
	}
	return d, q
}

// EvaluateAudited decides as Evaluate does, and reports whether the decision of Audit may
// be another one: an audited policy selects one of the pods.
func (s *Snapshot) EvaluateAudited(q Query) (d Decision, audited bool) {
	return s.Evaluate(q), s.audited(&q)
}

// audited reports whether an audited policy selects the source or the destination.
func (s *Snapshot) audited(q *Query) bool {
	return s.audit != nil && (s.Endpoint(q.Packet.Src.Addr()).auditedIn(Egress) || !q.ToHost && s.Endpoint(q.Packet.Dst.Addr()).auditedIn(Ingress))
}

// EvaluateDirection decides about a packet in one direction alone, for tools that evaluate
// pods of equal chains once. What a pod sends to itself it evaluates as sent to another pod
// of the same labels and ports.
func (s *Snapshot) EvaluateDirection(d Direction, q Query) Decision {
	var src, dst end
	s.ends(&q.Packet, &src, &dst)
	if src.endpoint != nil && src.endpoint == dst.endpoint {
		twin := *dst.endpoint
		dst.endpoint = &twin
	}
	return s.evaluate(d, &q, &src, &dst)
}

// isFinalDenial reports whether d denies and does not change once the pod is known or
// the peer evaluated.
func (d *Decision) isFinalDenial() bool {
	return d.Action == Deny && d.Reason != UnknownPod && d.Reason != UnknownSource && d.Reason != NotEvaluated
}

// fill sets f to the packet as d sees it. The subject has a chain.
func (s *Snapshot) fill(f *flow, d Direction, q *Query, src, dst *end) {
	f.dst, f.proto, f.dstPort = dst.endpoint, q.Packet.Proto, q.Packet.Dst.Port()
	f.memory, f.mayDefer = s.m.Memory, q.Defer
	if d == Ingress {
		f.peer, f.peerAddr = src.endpoint, src.addr
		return
	}
	f.peer, f.peerAddr = dst.endpoint, dst.addr
	// Nodes and domains are peers of egress alone. The address of a pod of this node in the
	// status of another node does not make the pod a node (NP-64).
	switch {
	case q.ToHost && s.m.Own != nil:
		f.host = s.m.Own
	case s.m.Hosts != nil:
		if f.host = s.m.Hosts[dst.addr]; f.host != nil && s.IsLocal(dst.addr) {
			f.host = nil
		}
	}
	if q.Learned != nil && src.endpoint.Egress.read().names {
		if f.names = q.Learned.Names(src.addr, dst.addr); f.names != nil {
			f.scope = s.scopeOf(dst.addr, q.ToHost)
		}
	}
}

// evaluate decides about the packet by the chain of the subject.
func (s *Snapshot) evaluate(d Direction, q *Query, src, dst *end) Decision {
	subject, peer := d.subject(src, dst), d.peer(src, dst)
	if subject.endpoint == nil {
		if s.m.Isolating[d] && s.inRanges(subject.addr) {
			return Decision{Action: Deny, Direction: d, Reason: UnknownPod}
		}
		return Decision{Action: Allow, Direction: d, Reason: NotSelected}
	}
	exempt := q.exempt(src, dst)
	chain := subject.endpoint.chain(d)
	if chain == nil {
		return Decision{Action: Allow, Direction: d, Reason: exempt} // NotSelected, as a rule
	}
	var f flow
	var m match
	s.fill(&f, d, q, src, dst)
	x := chain.prepare()
	switch {
	case !x.match(&f, &m):
		return Decision{Action: Deny, Direction: d, Reason: NotEvaluated}
	case exempt != NotSelected:
		return x.evaluateExempt(d, &f, &m, exempt)
	}
	beside := f.peer == nil && s.m.Isolating[d] && s.sharesPodRange(subject.addr, f.peerAddr)
	if chain.read().pods && (beside || s.unknownRemotePeer(d, &f)) && x.dependsOnPeer(&f, &m) {
		return Decision{Action: Deny, Direction: d, Reason: UnknownPod}
	}
	rule := x.decide(&f, &m)
	switch {
	case f.peer != nil:
	case (peer.doubtful || subject.endpoint.Unlisted[d]) && x.mayDecideOtherwise(rule, &f, &m):
		return Decision{Action: Deny, Direction: d, Reason: UnknownPod}
	case beside && rule.denies() && x.mayAllowPeer(&f, &m):
		return Decision{Action: Deny, Direction: d, Tier: rule.Tier, Reason: UnknownPod, Policy: rule.Policy}
	case d == Ingress && q.AwaitSource && !beside && s.mayBeNewcomer(q, &f, &m, x, rule):
		return Decision{Action: Deny, Direction: d, Reason: UnknownSource}
	}
	return rule.decision(d)
}

// mayBeNewcomer reports whether the peer of f may be a pod of another node that has no
// address yet, and for which x decides otherwise than rule, which decides for a peer that
// no rule selects.
func (s *Snapshot) mayBeNewcomer(q *Query, f *flow, m *match, x *index, rule *Rule) bool {
	if len(s.m.Newcomers) == 0 && !q.anyNewcomer || s.m.PodRanges.any() && !s.m.PodRanges.contain(f.peerAddr) {
		return false
	}
	switch {
	case rule.denies() && !x.mayAllowPeer(f, m), !rule.denies() && !x.dependsOnPeer(f, m):
		return false
	case len(s.m.Newcomers) > MaxNewcomers || q.anyNewcomer:
		return true
	}
	for _, e := range s.m.Newcomers {
		of, matched := *f, match{}
		of.peer = e
		if e.Doubtful || !x.match(&of, &matched) || x.decide(&of, &matched).denies() != rule.denies() {
			return true
		}
	}
	return false
}

// denies reports whether r, which decides, denies. If it is nil, no rule decides.
func (r *Rule) denies() bool { return r != nil && r.Action == Deny }

// subject returns the end whose policies are evaluated in direction d.
func (d Direction) subject(src, dst *end) *end {
	if d == Ingress {
		return dst
	}
	return src
}

// peer returns the end whose labels are evaluated in direction d.
func (d Direction) peer(src, dst *end) *end {
	if d == Ingress {
		return src
	}
	return dst
}

func (x *index) evaluateExempt(d Direction, f *flow, m *match, exempt Reason) Decision {
	rule, let := x.decideExempt(f, m)
	if let {
		return Decision{Action: Allow, Direction: d, Tier: NetworkPolicyTier, Reason: exempt}
	}
	return rule.decision(d)
}

// decision is what follows from the rule that decides, which is nil if none
// does.
func (r *Rule) decision(d Direction) Decision {
	switch {
	case r == nil:
		return Decision{Action: Allow, Direction: d, Reason: Unmatched}
	case r.Index == Isolation:
		return Decision{Action: r.Action, Direction: d, Tier: r.Tier, Reason: Isolated, Policy: r.Policy}
	}
	return Decision{Action: r.Action, Direction: d, Tier: r.Tier, Reason: RuleMatched, Policy: r.Policy, Rule: r.Index}
}

// sharesPodRange reports whether a is in the range of the pod's own address: a pod
// there may be too new to be known.
func (s *Snapshot) sharesPodRange(pod, a netip.Addr) bool {
	for _, r := range s.m.Ranges {
		if r.Contains(a) && r.Contains(pod) {
			return true
		}
	}
	return false
}

// unknownRemotePeer reports whether f goes to a range of pods of any node, and to no
// known pod. What comes from there may come from the node, by an address that
// no object shows, and its pods are held there until they are known.
func (s *Snapshot) unknownRemotePeer(d Direction, f *flow) bool {
	return d == Egress && f.peer == nil && s.m.Isolating[Egress] && s.m.PodRanges.contain(f.peerAddr)
}

// mayBeElsewhere reports whether e is or may be a pod of another node.
func (s *Snapshot) mayBeElsewhere(e *end) bool {
	if e.endpoint == nil {
		return e.doubtful || s.m.PodRanges.contain(e.addr)
	}
	return !s.IsLocal(e.addr)
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
func (s *Snapshot) Endpoint(a netip.Addr) *Endpoint {
	e := s.m.Endpoints.At(a)
	if s.audits && e != nil && e.Audited != nil {
		return e.Audited
	}
	return e
}

// Len returns the number of addresses that pods have.
func (s *Snapshot) Len() int { return s.m.Endpoints.Len() }

// Local returns the addresses of this node's pods in ascending order. They are
// not to be written to, nor are those that some policy selects.
func (s *Snapshot) Local() []netip.Addr { return s.m.Local.all }

// IsLocal reports whether a is an address of a pod of this node.
func (s *Snapshot) IsLocal(a netip.Addr) bool {
	_, local := slices.BinarySearchFunc(s.m.Local.all, a, netip.Addr.Compare)
	return local
}

// Selected returns, in ascending order, the addresses of this node's pods that
// some policy selects in direction d, or that await their status: those whose packets
// must be evaluated.
func (s *Snapshot) Selected(d Direction) []netip.Addr { return s.m.Local.selected[d] }

// AuditedIn returns, in ascending order, the addresses of this node's pods that only
// audited policies select in direction d.
func (s *Snapshot) AuditedIn(d Direction) []netip.Addr { return s.m.Local.audited[d] }

// AuditedToHost returns, in ascending order, the addresses of this node's pods whose packets
// to the node itself only audited policies may deny.
func (s *Snapshot) AuditedToHost() []netip.Addr { return s.m.Local.auditedToHost }

// SelectedToHost returns, in ascending order, the addresses of this node's pods
// whose packets to the node itself must be evaluated: an administrator's rule may
// deny them.
func (s *Snapshot) SelectedToHost() []netip.Addr { return s.m.Local.toHost }

// SelectedForNames returns, in ascending order, the addresses of this node's
// pods whose policies, audited ones too, name domains: what they learn from DNS must be known.
func (s *Snapshot) SelectedForNames() []netip.Addr { return s.m.Local.toNames }

// Ranges returns the ranges in which an address that is no endpoint must be
// evaluated, because some policy may deny something to a new pod in direction d.
func (s *Snapshot) Ranges(d Direction) []netip.Prefix {
	if !s.m.Isolating[d] {
		return nil
	}
	return slices.Clone(s.m.Ranges)
}

// RangesToHost returns the ranges in which an address that is no endpoint must be evaluated if
// it sends to the node itself, because some policy may deny that to a new pod.
func (s *Snapshot) RangesToHost() []netip.Prefix {
	if !s.m.ToHost {
		return nil
	}
	return slices.Clone(s.m.Ranges)
}

// SameLocal reports whether nothing has changed since old, a snapshot of the same cluster,
// of this node's own pods, the policies that select them, what pods may forward, Ranges and
// RangesToHost.
func (s *Snapshot) SameLocal(old *Snapshot) bool {
	return s.m.Local == old.m.Local && s.m.Isolating == old.m.Isolating && s.m.ToHost == old.m.ToHost && slices.Equal(s.m.Ranges, old.m.Ranges) &&
		maps.EqualFunc(s.m.ForwardedSources, old.m.ForwardedSources, slices.Equal)
}

// Findings returns what of the policies could not be honoured, ordered by
// policy and field.
func (s *Snapshot) Findings() []Finding { return slices.Clone(s.m.Findings) }
