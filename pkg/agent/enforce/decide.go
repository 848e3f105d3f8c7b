package enforce

import (
	"net/netip"
	"sync"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// evaluation is one packet on its way to a result.
type evaluation struct {
	event.Event
	in        Input
	auditOnly bool
	fleeting  bool // see place
	audited   bool // the decision of audited policies may differ
}

// evaluations are reused, because what taps get is on the heap.
var evaluations = sync.Pool{New: func() any { return new(evaluation) }}

// decide parses the packet and decides it by one snapshot, so that both directions are evaluated with
// the same one.
func (e *Enforcer) decide(v *evaluation) {
	p, err := packet.Parse(v.in.Payload)
	if err != nil {
		v.Err = err
		v.fail(event.Unparsable, v.auditOnly || e.cfg.FailOpenUnknownPacket)
		return
	}
	if v.in.Reply {
		p = p.Swapped()
		v.in.Link, v.in.OutLink = v.in.OutLink, v.in.Link
	}
	v.Packet, v.EitherWay = p, v.in.eitherWay(p)
	v.Snapshot = e.snapshot.Load()
	if v.Snapshot == nil {
		v.fail(event.NoSnapshot, v.auditOnly || e.cfg.FailOpen)
		return
	}
	e.decideBy(v, v.Snapshot)
}

// decideBy finds out which pods are at the ends of the packet, and evaluates it.
func (e *Enforcer) decideBy(v *evaluation, s *policy.Snapshot) {
	p := v.Packet
	senders, known := e.senders(&p, &v.in, s, v.auditOnly)
	p.Src = senders.toHost(p.Src)
	v.Query.Packet = p
	ends, located := e.locate(&p, &v.in, s)
	if !known || !v.auditOnly && (!located || e.isUnknown(&p, &ends)) {
		v.Decision.Reason = policy.UnknownPod
		e.undecided(v)
		return
	}
	if v.in.Marked && isOwnError(p, v.in.Payload) {
		v.Related, v.Result = true, event.Accept
		return
	}
	mayBeNewPod := e.evaluate(v, s, &senders, &ends)
	switch {
	case mayBeNewPod:
		v.wait(event.ShortWait, event.NotEvaluated)
		return
	case v.Decision.Wait() == policy.LongWait:
		if e.awaitSource(v, s) {
			return
		}
	case v.in.Pending:
		e.noteKnown(s, p)
	}
	if v.Decision.Wait() != policy.NoWait {
		e.undecided(v)
		return
	}
	e.conclude(v, s)
}

// evaluate decides the packet for the pods at its ends. It reports whether of several pods that may have
// sent it, those that are known may not send it.
func (e *Enforcer) evaluate(v *evaluation, s *policy.Snapshot, senders *Behind, ends *place) (mayBeNewPod bool) {
	v.fleeting = ends.fleeting
	p := v.Query.Packet
	v.Query = policy.Query{Packet: p, ToHost: v.in.ToHost, Sender: ends.sender, Receiver: ends.receiver, Learned: e.cfg.Learned, Routes: e.cfg.Routes, Defer: true, AwaitSource: !v.in.Last}
	v.decide(s)
	if len(ends.receivers) > 0 {
		v.decideForEach(ends.receivers, p, s)
	}
	if !senders.severalToHost() || v.Decision.Reason == policy.UnknownPod {
		return false
	}
	v.Decision = senders.evaluate(s, v.Query)
	return !v.Decision.Allowed() && !v.in.Last && p.Src.Addr().IsGlobalUnicast()
}

// decideForEach decides about a packet that is for each of several pods: it is denied if it is denied
// to any.
func (v *evaluation) decideForEach(receivers []netip.Addr, p packet.Packet, s *policy.Snapshot) {
	q := v.Query
	q.Packet = p // not swapped
	for _, q.Receiver = range receivers {
		if !v.Decision.Allowed() {
			return
		}
		v.Query = q
		v.decide(s)
	}
}

// decide decides about the query. If either end may have opened the connection, the query becomes the
// one that decides, and audited policies do not matter: they count attempts.
func (v *evaluation) decide(s *policy.Snapshot) {
	if v.EitherWay {
		v.Decision, v.Query = s.EvaluateLate(v.Query)
		v.audited = false
		return
	}
	v.Decision, v.audited = s.EvaluateAudited(v.Query)
}

// awaitSource reports whether it has a result for a packet whose source may be a pod of another node
// without an address. It has none if too many packets wait: then the packet is decided by its address.
func (e *Enforcer) awaitSource(v *evaluation, s *policy.Snapshot) bool {
	if v.in.Pending {
		v.wait(event.LongWait, event.UnknownPod)
		return true
	}
	switch e.sources.admit(v.Query.Packet, time.Now()) {
	case admitted:
		v.wait(event.LongWait, event.UnknownPod)
		return true
	case repeated:
		v.fail(event.Repeated, false) // the pending one gets the verdict
		return true
	}
	v.Query.AwaitSource = false
	v.decide(s)
	return false
}

// noteKnown ends the windows of addresses whose pod is known by now. It is called for packets
// that have waited.
func (e *Enforcer) noteKnown(s *policy.Snapshot, p packet.Packet) {
	for _, addr := range [...]netip.Addr{p.Src.Addr(), p.Dst.Addr()} {
		if s.Endpoint(addr) != nil {
			e.sources.known(addr)
		}
	}
}

// undecided gives the result for a packet whose pod is not known yet, or whose peer is not
// evaluated yet. Both usually take a moment only, so the packet waits before it is dropped.
func (e *Enforcer) undecided(v *evaluation) {
	failure, open := event.NotEvaluated, false
	if v.Decision.Reason == policy.UnknownPod {
		failure, open = event.UnknownPod, e.cfg.FailOpenUnknownPacket
	}
	if !v.in.Last {
		v.wait(event.ShortWait, failure)
		return
	}
	if open {
		v.Decision.Action = policy.Allow
	}
	v.Late = e.isLate(v)
	v.fail(failure, open)
}

// conclude gives the result of a decision.
func (e *Enforcer) conclude(v *evaluation, s *policy.Snapshot) {
	v.Late = e.isLate(v)
	if !v.Late {
		v.audit(s)
		e.classify(v, s)
	}
	switch {
	case !v.Decision.Allowed():
		v.Result = v.denied(s)
	case v.Lasting && e.cfg.AcceptClass(&v.Event):
		v.Result = event.AcceptClass
	default:
		v.Result = event.Accept
	}
}

// denied returns Reject if the sender of a packet that is denied gets an answer. Multicasts never do.
func (v *evaluation) denied(s *policy.Snapshot) event.Result {
	if v.in.Answerable && !v.Query.Packet.Dst.Addr().IsMulticast() && s.Rejects(v.Query, v.Decision) {
		return event.Reject
	}
	return event.Drop
}

// audit evaluates audited policies. It never changes the verdict of the packet, and neither does a
// panic during this evaluation.
func (v *evaluation) audit(s *policy.Snapshot) {
	if !v.audited {
		return
	}
	defer func() {
		if recover() != nil {
			v.Audit = event.AuditUndecided
		}
	}()
	v.Would = s.Audit().Evaluate(v.Query)
	switch {
	case v.Would.Wait() != policy.NoWait:
		v.Audit = event.AuditUndecided // audited policies must not delay the packet
	case v.Would.Action != v.Decision.Action:
		v.Audit = event.AuditDiffers
	}
}

// classify finds out whether the decision is lasting, and holds for all packets with these addresses.
// What only audited policies select and is allowed does not last: each packet is counted.
func (e *Enforcer) classify(v *evaluation, s *policy.Snapshot) {
	if e.cfg.AcceptClass == nil || v.auditOnly && v.Decision.Allowed() {
		return
	}
	c, ok := packet.ClassOf(v.Query.Packet, v.in.Payload)
	switch {
	case !ok || v.fleeting || !s.Lasting(v.Query, v.Decision):
	case !v.Decision.Allowed() && s.RejectsSome(v.Query) && !s.Rejects(v.Query, v.Decision):
		// The kernel would answer further packets of the class, because it knows the pods only.
	default:
		v.Class, v.Lasting = c, true
	}
}

// wait lets the packet wait because of a failure that may pass.
func (v *evaluation) wait(r event.Result, because event.Failure) { v.Result, v.Failure = r, because }

// fail applies the failure policy.
func (v *evaluation) fail(f event.Failure, open bool) {
	v.Failure, v.Result = f, event.Drop
	if open {
		v.Result = event.Accept
	}
}

// isOwnError reports whether p is an ICMP error about a packet that its destination sent to
// its source. An endpoint may only report errors of its own connections: the sender of an
// ICMP error can quote any packet.
func isOwnError(p packet.Packet, payload []byte) bool {
	about, ok := packet.ParseError(payload)
	return ok && about.Src.Addr() == p.Dst.Addr() && about.Dst.Addr() == p.Src.Addr()
}
