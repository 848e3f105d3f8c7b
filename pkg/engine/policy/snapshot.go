package policy

import (
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// Snapshot is a compiled cluster as one node evaluates it. It is immutable; all
// methods may be called from any goroutine.
type Snapshot struct {
	m Model
	// audit is the same cluster with audited policies enforced, nil if no policy is audited.
	audit *Snapshot
	// audits marks such a snapshot: Endpoint returns the audited endpoints.
	audits bool
}

// New returns the snapshot of m. The caller must not modify m afterwards.
func New(m Model) *Snapshot {
	if m.Local == nil {
		m.Local = &Local{}
	}
	s := &Snapshot{m: m}
	if m.Audit != nil {
		m.Isolating, m.PodRanges, m.Audit = m.Audit.Isolating, m.Audit.PodRanges, nil
		s.audit = &Snapshot{m: m, audits: true}
	}
	return s
}

// Audit returns the same cluster as if audited policies were enforced, nil if no policy is audited.
// Use it for decisions only; both snapshots select the same packets for evaluation.
func (s *Snapshot) Audit() *Snapshot { return s.audit }

// Prepare builds the indexes that evaluation needs, so that the first packets do not wait for them.
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

// Query is a packet with what the kernel and DNS answers tell about it.
type Query struct {
	Packet packet.Packet
	// ToHost reports whether the destination is the evaluating node itself. Then only the source's
	// policies apply.
	ToHost bool
	// Sender and Receiver are addresses of the pods of this node behind the interfaces on which the
	// packet arrives and leaves, invalid if none is known. They are the ends of a packet whose
	// addresses are not theirs (NP-47). Rules with blocks match the packet.
	Sender, Receiver netip.Addr
	// Learned looks up the domain names that pods have learned; nil has none.
	Learned Learned
	// AwaitSource gives UnknownSource if the unknown source may be a pod of another node and that
	// could change the decision. Without it, such a source is evaluated by address.
	AwaitSource bool
	// Routes tells which addresses the node routes to other nodes; nil tells nothing.
	Routes Routes
	// Defer queues expensive evaluations in Model.Deferred. A decision that depends on one has the
	// reason NotEvaluated.
	Defer bool

	anyNewcomer bool // as if there were more than MaxNewcomers
}

// Learned looks up the domain names of addresses.
type Learned interface {
	// Names returns the names that the pod at address pod has learned for addr, nil if there are
	// none. It is called only for pods whose policies name domains, from any goroutine.
	Names(pod, addr netip.Addr) *Names
}

// swapped returns the query about a packet in the other direction.
func (q Query) swapped() Query {
	q.Packet = q.Packet.Swapped()
	q.Sender, q.Receiver = q.Receiver, q.Sender
	return q
}

// Routes looks up the routes of the node.
type Routes interface {
	// LeadsAway reports whether the node sends to addr through an uplink, by a route to a part of one
	// of ranges, or to all of it. ranges and pods are those of this node, pods in ascending order. It
	// is called for addresses with Dispute.Here only, from any goroutine.
	LeadsAway(addr netip.Addr, ranges []netip.Prefix, pods []netip.Addr) bool
}

// exempt returns why NetworkPolicy always allows the packet, or NotSelected. A packet from a pod to
// itself gets here only through a Service; otherwise it never leaves the pod.
func (q *Query) exempt(src, dst *end) Reason {
	switch {
	case q.ToHost:
		return OwnNode
	case src.endpoint != nil && src.endpoint == dst.endpoint:
		return Hairpin
	}
	return NotSelected
}

// ends fills in src and dst, which are zero. Ends and flows are filled in place because returning
// them would copy them twice for each packet.
func (s *Snapshot) ends(q *Query, src, dst *end) {
	s.find(src, q.Packet.Src.Addr(), q.Sender, q.Routes)
	s.find(dst, q.Packet.Dst.Addr(), q.Receiver, q.Routes)
	if q.ToHost {
		dst.dispute = nil // the node itself has the address
	}
}

// find fills in e, which is zero, for address a. behind is the pod behind the interface, invalid if it
// is not known, or has a. An address in the ranges of this node's pods may be that of a new pod (NP-55).
func (s *Snapshot) find(e *end, a, behind netip.Addr, routes Routes) {
	e.addr, e.pod = a, a
	if behind.IsValid() && (s.IsLocal(a) || !s.inRanges(a)) {
		e.pod = behind
	}
	if at := s.m.Endpoints.At(e.pod); at != nil && at.Dispute != nil {
		s.findDisputed(e, at.Dispute, routes)
		return
	}
	e.endpoint = s.Endpoint(e.pod)
}

// Evaluate decides about a packet: the source's egress chain and the destination's ingress chain
// must both allow it, if these pods are local. It does not allocate.
func (s *Snapshot) Evaluate(q Query) Decision {
	var src, dst end
	s.ends(&q, &src, &dst)
	out := s.evaluate(Egress, &q, &src, &dst)
	if q.ToHost {
		return out
	}
	if out.Action == Allow && src.endpoint != nil && src.endpoint.AwaitsStatus && s.mayBeElsewhere(src.endpoint, &dst) {
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

// EvaluateLate decides about a packet when it is not known which end opened the connection: q must
// be allowed both as it is and with the ends swapped. It returns the query that it decided by. A
// packet to the node itself is not swapped, because the node may always connect to its pods.
func (s *Snapshot) EvaluateLate(q Query) (Decision, Query) {
	d := s.Evaluate(q)
	if q.ToHost || d.isFinalDenial() {
		return d, q
	}
	swapped := q.swapped()
	if back := s.Evaluate(swapped); back.isFinalDenial() || d.Allowed() && (!back.Allowed() || d.Reason == NotSelected) {
		return back, swapped
	}
	return d, q
}

// EvaluateAudited decides as Evaluate does and reports whether Audit may decide differently:
// whether an audited policy selects one of the pods.
func (s *Snapshot) EvaluateAudited(q Query) (d Decision, audited bool) {
	return s.Evaluate(q), s.audited(&q)
}

// audited reports whether an audited policy selects the source or the destination.
func (s *Snapshot) audited(q *Query) bool {
	return s.audit != nil && (s.Endpoint(q.Packet.Src.Addr()).auditedIn(Egress) || !q.ToHost && s.Endpoint(q.Packet.Dst.Addr()).auditedIn(Ingress))
}

// EvaluateDirection decides about a packet in one direction only, for tools that evaluate only one
// of several pods with equal chains. It evaluates a packet from a pod to itself as one to another
// pod with the same labels and ports.
func (s *Snapshot) EvaluateDirection(d Direction, q Query) Decision {
	var src, dst end
	s.ends(&q, &src, &dst)
	if src.endpoint != nil && src.endpoint == dst.endpoint {
		twin := *dst.endpoint
		dst.endpoint = &twin
	}
	return s.evaluate(d, &q, &src, &dst)
}

// isFinalDenial reports whether d denies and does not wait for information.
func (d *Decision) isFinalDenial() bool { return d.Action == Deny && d.Wait() == NoWait }

// fill sets f to the packet in direction d. The subject must have a chain.
func (s *Snapshot) fill(f *flow, d Direction, q *Query, src, dst *end) {
	f.dst, f.proto, f.dstPort = dst.endpoint, q.Packet.Proto, q.Packet.Dst.Port()
	if q.Defer {
		f.deferred = s.m.Deferred
	}
	peer := d.peer(src, dst)
	f.peer, f.peerAddr = peer.endpoint, peer.addr
	if d == Ingress && !dst.endpoint.Ingress.findNeeds().nodes {
		return
	}
	// A pod of this node does not become a node because the status of another node shows its address
	// (NP-64).
	switch {
	case q.ToHost && s.m.Own != nil:
		f.host = s.m.Own
	case s.m.Hosts != nil:
		f.host = s.m.Hosts[peer.addr]
		if f.host != nil && (peer.noHost || s.IsLocal(peer.pod)) {
			f.host = nil
		}
	}
	if d == Ingress {
		return // only egress has domains as peers
	}
	if q.Learned != nil && src.endpoint.Egress.findNeeds().names {
		f.names = q.Learned.Names(src.pod, dst.addr)
		if f.names != nil {
			f.scope = s.scopeOf(dst.addr, q.ToHost)
		}
	}
}

// evaluate decides in direction d by the chain of the subject.
func (s *Snapshot) evaluate(d Direction, q *Query, src, dst *end) Decision {
	if subject := d.subject(src, dst).endpoint; d.peer(src, dst).dispute != nil && subject != nil && subject.chain(d) != nil {
		worst, _ := s.evaluateDisputed(d, q, src, dst)
		return worst
	}
	return s.evaluateOne(d, q, src, dst)
}

// evaluateOne decides as if it were certain which pod the peer is.
func (s *Snapshot) evaluateOne(d Direction, q *Query, src, dst *end) Decision {
	subject, peer := d.subject(src, dst), d.peer(src, dst)
	if subject.endpoint == nil {
		if s.m.Isolating[d] && s.inRanges(subject.addr) && !subject.isElsewhere() {
			return Decision{Action: Deny, Direction: d, Reason: UnknownPod}
		}
		return Decision{Action: Allow, Direction: d, Reason: NotSelected}
	}
	exempt := q.exempt(src, dst)
	chain := subject.endpoint.chain(d)
	if chain == nil {
		return Decision{Action: Allow, Direction: d, Reason: exempt} // usually NotSelected
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
	rule := x.decide(&f, &m)
	if f.peer == nil {
		if who := s.possibleOccupants(d, q, subject, peer); who != noPod && s.depends(who, q, x, rule, &f, &m) {
			return rule.undecided(d, who)
		}
	}
	return rule.decision(d)
}

// denies reports whether the deciding rule r denies. r is nil if no rule decides.
func (r *Rule) denies() bool { return r != nil && r.Action == Deny }

// subject returns the end whose policies are evaluated in direction d.
func (d Direction) subject(src, dst *end) *end {
	if d == Ingress {
		return dst
	}
	return src
}

// subjectOf returns the address of the pod whose policies are evaluated in direction d.
func (d Direction) subjectOf(p packet.Packet) netip.Addr {
	if d == Ingress {
		return p.Dst.Addr()
	}
	return p.Src.Addr()
}

// peer returns the end whose labels are evaluated in direction d.
func (d Direction) peer(src, dst *end) *end {
	if d == Ingress {
		return src
	}
	return dst
}

func (x *index) evaluateExempt(d Direction, f *flow, m *match, exempt Reason) Decision {
	rule, isExempt := x.decideExempt(f, m)
	if isExempt {
		return Decision{Action: Allow, Direction: d, Tier: NetworkPolicyTier, Reason: exempt}
	}
	return rule.decision(d)
}

// decision returns the decision of the deciding rule r, which is nil if no rule decides.
func (r *Rule) decision(d Direction) Decision {
	switch {
	case r == nil:
		return Decision{Action: Allow, Direction: d, Reason: Unmatched}
	case r.Index == Isolation:
		return Decision{Action: r.Action, Direction: d, Tier: r.Tier, Reason: Isolated, Policy: r.Policy}
	}
	return Decision{Action: r.Action, Direction: d, Tier: r.Tier, Reason: RuleMatched, Policy: r.Policy, Rule: r.Index}
}

func (s *Snapshot) inRanges(a netip.Addr) bool {
	for _, r := range s.m.Ranges {
		if r.Contains(a) {
			return true
		}
	}
	return false
}

// Endpoint returns the pod at a, nil if there is none, or if it is disputed which pod it is.
func (s *Snapshot) Endpoint(a netip.Addr) *Endpoint {
	e := s.m.Endpoints.At(a)
	switch {
	case e == nil || e.Dispute != nil:
		return nil
	case s.audits && e.Audited != nil:
		return e.Audited
	}
	return e
}

// Len returns the number of addresses that pods have or may have.
func (s *Snapshot) Len() int { return s.m.Endpoints.Len() }

// Local returns the addresses of this node's pods in ascending order. Callers must not modify this
// slice, and the same goes for Selected and the methods like it.
func (s *Snapshot) Local() []netip.Addr { return s.m.Local.all }

// IsLocal reports whether a is an address of a pod of this node.
func (s *Snapshot) IsLocal(a netip.Addr) bool {
	_, local := slices.BinarySearchFunc(s.m.Local.all, a, netip.Addr.Compare)
	return local
}

// Selected returns, in ascending order, the addresses of this node's pods whose packets in
// direction d must be evaluated: a policy selects them, or they await their status.
func (s *Snapshot) Selected(d Direction) []netip.Addr { return s.m.Local.selected[d] }

// AuditedIn returns, in ascending order, the addresses of this node's pods that only
// audited policies select in direction d.
func (s *Snapshot) AuditedIn(d Direction) []netip.Addr { return s.m.Local.audited[d] }

// AuditedToHost returns, in ascending order, the addresses of this node's pods whose packets to the
// node only audited policies may deny.
func (s *Snapshot) AuditedToHost() []netip.Addr { return s.m.Local.auditedToHost }

// SelectedToHost returns, in ascending order, the addresses of this node's pods
// whose packets to the node itself must be evaluated: an administrator's rule may
// deny them.
func (s *Snapshot) SelectedToHost() []netip.Addr { return s.m.Local.toHost }

// Closed returns the addresses of this node's pods for which every connection in d is denied, except those
// with the node itself and with the pod itself.
func (s *Snapshot) Closed(d Direction) []netip.Addr {
	var closed []netip.Addr
	for _, a := range s.Selected(d) {
		if e := s.Endpoint(a); e != nil && e.chain(d).deniesAll(a) {
			closed = append(closed, a)
		}
	}
	return closed
}

// SelectedForNames returns, in ascending order, the addresses of this node's pods whose policies,
// including audited ones, name domains: their DNS answers must be read.
func (s *Snapshot) SelectedForNames() []netip.Addr { return s.m.Local.toNames }

// Rejecting returns, in ascending order, the addresses of this node's pods that policies select and
// whose denied packets are answered.
func (s *Snapshot) Rejecting() []netip.Addr { return s.m.Local.rejecting }

// Rejects reports whether the packet of q, decided as d, is denied and answered (DN-1): the pod whose
// policies deny it is one of Rejecting. Packets that policies could not decide are never answered.
func (s *Snapshot) Rejects(q Query, d Decision) bool {
	return d.isFinalDenial() && d.Policy != nil && s.rejects(d.Direction.subjectOf(q.Packet))
}

// RejectsSome reports whether one end of the packet of q is one of Rejecting.
func (s *Snapshot) RejectsSome(q Query) bool {
	return s.rejects(q.Packet.Src.Addr()) || s.rejects(q.Packet.Dst.Addr())
}

func (s *Snapshot) rejects(a netip.Addr) bool {
	if len(s.m.Local.rejecting) == 0 {
		return false
	}
	_, found := slices.BinarySearchFunc(s.m.Local.rejecting, a, netip.Addr.Compare)
	return found
}

// Ranges returns the ranges in which an address without an endpoint must be evaluated, because some
// policy may deny packets of a new pod in direction d.
func (s *Snapshot) Ranges(d Direction) []netip.Prefix {
	if !s.m.Isolating[d] {
		return nil
	}
	return slices.Clone(s.m.Ranges)
}

// RangesToHost returns the ranges in which an address without an endpoint must be evaluated when it
// sends to the node itself, because some policy may deny that to a new pod.
func (s *Snapshot) RangesToHost() []netip.Prefix {
	if !s.m.ToHost {
		return nil
	}
	return slices.Clone(s.m.Ranges)
}

// SameLocal reports whether this node's pods, the policies that select them, the forwarded sources,
// Ranges and RangesToHost are the same as in old, a snapshot of the same cluster.
func (s *Snapshot) SameLocal(old *Snapshot) bool {
	return s.m.Local == old.m.Local && s.m.Isolating == old.m.Isolating && s.m.ToHost == old.m.ToHost && slices.Equal(s.m.Ranges, old.m.Ranges) &&
		maps.EqualFunc(s.m.ForwardedSources, old.m.ForwardedSources, slices.Equal)
}

// Findings returns the parts of policies that could not be honoured, ordered by policy and field.
func (s *Snapshot) Findings() []Finding { return slices.Clone(s.m.Findings) }
