// Package enforce decides single packets. It parses a packet, evaluates it with the current
// snapshot or applies the failure policy, and counts and logs the result. It does not know
// where packets come from or how snapshots are compiled.
package enforce

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Result is what happens to one packet, by a policy.Decision or the failure policy.
type Result uint8

const (
	Drop      Result = iota // the zero value fails closed
	Accept                  // let the packet pass
	ShortWait               // see policy.ShortWait
	LongWait                // see policy.LongWait
	Remember                // Accept, also all packets of the class until Verdicts forgets it
	Reject                  // Drop, and the sender gets an answer
)

// Config is the configuration of an Enforcer.
type Config struct {
	// FailOpen accepts packets while there is no snapshot.
	FailOpen bool
	// FailOpenUnknownPacket accepts packets that cannot be parsed, and packets
	// of a pod of this node that is still unknown when they cannot wait longer.
	FailOpenUnknownPacket bool
	// Wanted is called with the addresses of a packet that begins to wait for a pod of another node
	// to become known. It must not block. Nil ignores them.
	Wanted func(netip.Addr)
	// Learned holds the domain names that pods have resolved. If it is nil, a rule that names
	// domains matches nothing.
	Learned policy.Learned
	// Routes are the routes of the node. Nil knows none.
	Routes policy.Routes
	// Verdicts records lasting decisions, so that the kernel need not ask again. If it is
	// nil, the kernel asks for every connection.
	Verdicts Verdicts
	// Flows records decisions. Nil records none.
	Flows *flows.Recorder
	// Accepted is called, from any goroutine, for each parsed packet that is accepted, before
	// its verdict is sent. eitherWay reports that either end may have opened its connection.
	// Accepted may be nil.
	Accepted func(p packet.Packet, eitherWay bool)
	// Logger receives a line for each packet at level 4, and one for packets that cannot be parsed,
	// at most every ten seconds. Its zero value logs nothing.
	Logger klog.Logger
	// Registerer receives the metrics of this package.
	Registerer prometheus.Registerer
}

// Verdicts remembers decisions for all packets of a class. Its methods are called from any
// goroutine.
type Verdicts interface {
	// Allowed reports whether the kernel may remember that a class is allowed.
	Allowed(c packet.Class, d policy.Decision) bool
	// Denied is called for each packet that was denied.
	Denied(c packet.Class, d policy.Decision)
}

// Enforcer decides packets with the snapshot of the latest Swap. Its methods may be called
// from any goroutine.
type Enforcer struct {
	cfg        Config
	snapshot   atomic.Pointer[policy.Snapshot]
	unknown    atomic.Pointer[map[netip.Addr]struct{}]
	interfaces atomic.Pointer[Interfaces]
	metrics    *metrics
	unparsed   rate.Sometimes // bounds the log
	audits     *audits
	sources    *newcomers
}

// New returns an Enforcer without a snapshot.
func New(cfg Config) *Enforcer {
	return &Enforcer{
		cfg: cfg, metrics: newMetrics(cfg.Registerer), audits: newAudits(cfg.Registerer), sources: newNewcomers(),
		unparsed: rate.Sometimes{First: 1, Interval: 10 * time.Second},
	}
}

// Swap makes s the snapshot that decides packets from now on.
func (e *Enforcer) Swap(s *policy.Snapshot) { e.snapshot.Store(s) }

// SetUnknown replaces the set of addresses whose packets, in both directions, are treated as
// those of an unknown pod. addrs must not be modified afterwards.
func (e *Enforcer) SetUnknown(addrs map[netip.Addr]struct{}) {
	if len(addrs) == 0 {
		e.unknown.Store(nil)
		return
	}
	e.unknown.Store(&addrs)
}

// isUnknown reports whether p is from or to an address of SetUnknown, or the pod of such an address.
func (e *Enforcer) isUnknown(p *packet.Packet, ends *place) bool {
	unknown := e.unknown.Load()
	if unknown == nil {
		return false
	}
	for _, addr := range [...]netip.Addr{p.Src.Addr(), p.Dst.Addr(), ends.sender, ends.receiver} {
		if _, ok := (*unknown)[addr]; ok {
			return true
		}
	}
	return false
}

// Input is one packet and its metadata.
type Input struct {
	// Payload begins with the packet's IP header. It may be truncated.
	Payload []byte
	// ToHost is set if the packet is for this node itself.
	ToHost bool
	// Link is the index of its input interface, 0 for none.
	Link uint32
	// OutLink is the index of its output interface, 0 before routing and for the node itself.
	OutLink uint32
	// Answerable is set if the packet can be answered when it is denied.
	Answerable bool
	// Marked is set for two kinds of packets: an ICMP error from a pod that conntrack relates
	// to an established connection, possibly one of other pods; and a packet of another
	// protocol that makes conntrack track a connection which the packet may not have opened.
	Marked bool
	// Established is set if conntrack knows the connection and which end has opened it; Reply is set if
	// the packet is from the other end.
	Established, Reply bool
	// Pending is set if an earlier result for the packet was ShortWait or LongWait.
	Pending bool
	// Last is set if the packet cannot wait any longer: the result is Drop or Accept.
	Last bool
}

// Decide returns the result for one packet. It keeps no reference to the packet and does not
// allocate unless it logs.
func (e *Enforcer) Decide(in Input) Result { return e.process(in, false) }

// Audit is Decide for a packet that only audited policies select. It accepts what cannot be
// decided, because the packet would not be queued without audited policies, and remembers
// nothing.
func (e *Enforcer) Audit(in Input) Result { return e.process(in, true) }

func (e *Enforcer) process(in Input, auditOnly bool) Result {
	start := time.Now()
	p, err := packet.Parse(in.Payload)
	if in.Reply {
		p = p.Swapped()
		in.Link, in.OutLink = in.OutLink, in.Link
	}
	r := e.decide(p, err, in, auditOnly, start)
	if err == nil && e.cfg.Accepted != nil && (r == Accept || r == Remember) {
		e.cfg.Accepted(p, in.eitherWay(p))
	}
	if r != ShortWait && r != LongWait {
		e.metrics.observe(p, r, time.Since(start))
	}
	return r
}

// EvaluateClass evaluates a class with the current snapshot, see
// policy.Snapshot.EvaluateClass. Without a snapshot no decision is lasting.
func (e *Enforcer) EvaluateClass(c packet.Class) (d policy.Decision, lasting bool) {
	s := e.snapshot.Load()
	if s == nil {
		return policy.Decision{}, false
	}
	return s.EvaluateClass(c)
}

// EvaluateOpened evaluates the packet that opened a connection with the current snapshot.
// would is the decision with audited policies if its verdict differs, else nil. s is nil if
// there is no snapshot. Too slow for the packet path.
func (e *Enforcer) EvaluateOpened(p packet.Packet, toHost bool) (d policy.Decision, would *policy.Decision, s *policy.Snapshot) {
	if s = e.snapshot.Load(); s == nil {
		return d, nil, nil
	}
	q := policy.Query{Packet: p, ToHost: toHost, Learned: e.cfg.Learned, Routes: e.cfg.Routes, Defer: true}
	d, audited := s.EvaluateAudited(q)
	if audited {
		if w := s.Audit().Evaluate(q); w.Action != d.Action && w.Wait() == policy.NoWait {
			would = &w
		}
	}
	return d, would, s
}

// CountRemembered counts packets of a class that the kernel decided by a remembered verdict.
func (e *Enforcer) CountRemembered(c packet.Class, d policy.Decision, packets uint64) {
	e.metrics.remembered(c, d, packets)
	s := e.snapshot.Load()
	if s == nil {
		return
	}
	if e.cfg.Flows != nil {
		e.cfg.Flows.Remembered(c, d, s, packets)
	}
}

func (e *Enforcer) decide(p packet.Packet, parseErr error, in Input, auditOnly bool, at time.Time) Result {
	if parseErr != nil {
		e.unparsed.Do(func() { e.cfg.Logger.Info("Packet cannot be parsed", "reason", parseErr.Error()) })
		return e.metrics.failure(unparsable, auditOnly || e.cfg.FailOpenUnknownPacket)
	}
	s := e.snapshot.Load() // loaded once, so that both directions are evaluated with the same snapshot
	if s == nil {
		return e.metrics.failure(noSnapshot, auditOnly || e.cfg.FailOpen)
	}
	return e.decideBy(s, p, &in, auditOnly, at)
}

// decideBy decides by a snapshot.
func (e *Enforcer) decideBy(s *policy.Snapshot, p packet.Packet, in *Input, auditOnly bool, at time.Time) Result {
	senders, known := e.senders(&p, in, s, auditOnly)
	p.Src = senders.toHost(p.Src)
	ends, located := e.locate(&p, in, s)
	if !known || !auditOnly && (!located || e.isUnknown(&p, &ends)) {
		return e.undecided(p, policy.Decision{Reason: policy.UnknownPod}, s, *in, at)
	}
	if in.Marked && isOwnError(p, in.Payload) {
		return Accept
	}
	var v evaluation
	e.evaluate(&v, p, in, s, &senders, &ends)
	switch {
	case v.mayBeNewPod:
		return ShortWait
	case v.Wait() == policy.LongWait:
		if r, waits := e.awaitSource(&v, s, in); waits {
			return r
		}
	case in.Pending:
		e.noteKnown(s, p)
	}
	if v.Wait() != policy.NoWait {
		return e.undecided(p, v.Decision, s, *in, at)
	}
	if v.eitherWay || e.isLate(&p, in, at) {
		return v.answered(e.late(p, v.Decision), s, in)
	}
	return e.conclude(&v, s, in, auditOnly, at)
}

// evaluation is what a snapshot decides about a packet.
type evaluation struct {
	policy.Decision
	query       policy.Query // that was decided
	fleeting    bool         // see place
	eitherWay   bool         // either end may have opened the connection
	audited     bool         // the decision of audited policies may differ
	mayBeNewPod bool         // of the pods that may have sent it, those that are known may not send it
}

// evaluate fills v in place: it is too large to be copied for each packet.
func (e *Enforcer) evaluate(v *evaluation, p packet.Packet, in *Input, s *policy.Snapshot, senders *Behind, ends *place) {
	v.eitherWay, v.fleeting = in.eitherWay(p), ends.fleeting
	v.query = policy.Query{Packet: p, ToHost: in.ToHost, Sender: ends.sender, Receiver: ends.receiver, Learned: e.cfg.Learned, Routes: e.cfg.Routes, Defer: true, AwaitSource: !in.Last}
	v.decide(s)
	if len(ends.receivers) > 0 {
		v.decideForEach(ends.receivers, p, s)
	}
	if senders.severalToHost() && v.Reason != policy.UnknownPod {
		v.Decision = senders.evaluate(s, v.query)
		v.mayBeNewPod = !v.Allowed() && !in.Last && p.Src.Addr().IsGlobalUnicast()
	}
}

// decideForEach decides about a packet that is for each of several pods: it is denied if it is denied
// to any.
func (v *evaluation) decideForEach(receivers []netip.Addr, p packet.Packet, s *policy.Snapshot) {
	q := v.query
	q.Packet = p // not swapped
	for _, q.Receiver = range receivers {
		if !v.Allowed() {
			return
		}
		v.query = q
		v.decide(s)
	}
}

// decide decides about the query. If either end may have opened the connection, query becomes the
// one that decides, and audited policies do not matter: they count attempts.
func (v *evaluation) decide(s *policy.Snapshot) {
	if v.eitherWay {
		v.Decision, v.query = s.EvaluateLate(v.query)
		v.audited = false
		return
	}
	v.Decision, v.audited = s.EvaluateAudited(v.query)
}

// awaitSource returns what becomes of a packet whose source may be a pod of another node without an
// address. It does not wait if too many do: then it is decided by its address.
func (e *Enforcer) awaitSource(v *evaluation, s *policy.Snapshot, in *Input) (r Result, waits bool) {
	if in.Pending {
		return LongWait, true
	}
	switch e.sources.admit(v.query.Packet, time.Now()) {
	case admitted:
		e.want(&v.query.Packet, s)
		return LongWait, true
	case repeated:
		return Drop, true // the pending one gets the verdict
	}
	v.query.AwaitSource = false
	v.decide(s)
	return Drop, false
}

// want asks for the ends of a packet that are no known pods.
func (e *Enforcer) want(p *packet.Packet, s *policy.Snapshot) {
	if e.cfg.Wanted == nil {
		return
	}
	for _, addr := range []netip.Addr{p.Src.Addr(), p.Dst.Addr()} {
		if s.Endpoint(addr) == nil {
			e.cfg.Wanted(addr)
		}
	}
}

// conclude records a decision and returns what becomes of the packet.
func (e *Enforcer) conclude(v *evaluation, s *policy.Snapshot, in *Input, auditOnly bool, at time.Time) Result {
	p, d := &v.query.Packet, &v.Decision
	if l := e.cfg.Logger.V(4); l.Enabled() {
		l.Info("Packet decided", "packet", *p, "decision", *d)
	}
	e.metrics.decided(*d, 1)
	if v.audited {
		e.recordAudited(p, d, s, v.query, at)
	} else {
		e.record(p, d, s, nil, at)
	}
	if auditOnly && d.Allowed() {
		return Accept
	}
	remember := e.remember(s, v, in.Payload)
	if d.Allowed() {
		return remember
	}
	if d.Direction == policy.Egress && s.NamesRefused(v.query) {
		e.metrics.namesRefused.Inc()
	}
	return v.answered(Drop, s, in)
}

// answered returns the result r of the evaluation, or Reject if a packet that it denies is answered.
// Multicasts never are.
func (v *evaluation) answered(r Result, s *policy.Snapshot, in *Input) Result {
	if r == Drop && in.Answerable && !v.query.Packet.Dst.Addr().IsMulticast() && s.Rejects(v.query, v.Decision) {
		return Reject
	}
	return r
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

// recordAudited records a decision together with that of audited policies.
func (e *Enforcer) recordAudited(p *packet.Packet, d *policy.Decision, s *policy.Snapshot, q policy.Query, at time.Time) {
	if would, differs := e.audits.evaluate(s.Audit(), q, *d); differs {
		e.record(p, d, s, &would, at)
		return
	}
	e.record(p, d, s, nil, at)
}

// record records a decision if the Enforcer has a flow recorder. would is the decision with
// audited policies if its verdict differs, else nil.
func (e *Enforcer) record(p *packet.Packet, d *policy.Decision, s *policy.Snapshot, would *policy.Decision, at time.Time) {
	if e.cfg.Flows != nil {
		e.cfg.Flows.Decided(p, d, s, would, at)
	}
}

// remember passes the decision to Verdicts if it is lasting, and holds for all packets with these
// addresses. It returns the result for a packet that is allowed.
func (e *Enforcer) remember(s *policy.Snapshot, v *evaluation, payload []byte) Result {
	if e.cfg.Verdicts == nil {
		return Accept
	}
	q, d := v.query, v.Decision
	c, ok := packet.ClassOf(q.Packet, payload)
	switch {
	case !ok || v.fleeting || !s.Lasting(q, d):
	case !d.Allowed() && s.RejectsSome(q) && !s.Rejects(q, d):
		// The kernel would answer further packets of the class, because it knows the pods only.
	case !d.Allowed():
		e.cfg.Verdicts.Denied(c, d)
	case e.cfg.Verdicts.Allowed(c, d):
		return Remember
	}
	return Accept
}

// isOwnError reports whether p is an ICMP error about a packet that its destination sent to
// its source. An endpoint may only report errors of its own connections: the sender of an
// ICMP error can quote any packet.
func isOwnError(p packet.Packet, payload []byte) bool {
	about, ok := packet.ParseError(payload)
	return ok && about.Src.Addr() == p.Dst.Addr() && about.Dst.Addr() == p.Src.Addr()
}

// undecided returns the result for a packet whose pod is not known yet, or whose peer is not
// evaluated yet. Both usually take a moment only, so the packet waits before it is dropped.
func (e *Enforcer) undecided(p packet.Packet, d policy.Decision, s *policy.Snapshot, in Input, at time.Time) Result {
	if !in.Last {
		if d.Reason == policy.UnknownPod && !in.Pending {
			e.want(&p, s)
		}
		return ShortWait
	}
	failure, open := notEvaluated, false
	if d.Reason == policy.UnknownPod {
		failure, open = unknownPod, e.cfg.FailOpenUnknownPacket
	}
	if open {
		d.Action = policy.Allow
	}
	if in.eitherWay(p) || e.isLate(&p, &in, at) {
		if open {
			e.metrics.failure(failure, open) // it passed
		}
		return e.late(p, d)
	}
	e.record(&p, &d, s, nil, at)
	return e.metrics.failure(failure, open)
}
