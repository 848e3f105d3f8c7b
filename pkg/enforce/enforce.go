// Package enforce decides one packet: it parses the packet, evaluates it by the
// current snapshot, or applies the failure policy where that is not possible, and
// counts and logs the result. It knows neither where packets come from nor how
// snapshots are made.
package enforce

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/flows"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Result is what becomes of one packet: policy.Decision or the failure policy, turned
// into what to do.
type Result uint8

const (
	Drop        Result = iota // the zero value fails closed
	Accept                    // let the packet pass
	Undecided                 // retry shortly: the pod may be known, or the peer evaluated, by then
	Unannounced               // retry for longer: the source may be a pod of another node, whose status takes seconds
	Remember                  // as Accept, and so is every packet of the class until Verdicts forgets it
)

// Config is the configuration of an Enforcer.
type Config struct {
	// FailOpen accepts packets while there is no snapshot.
	FailOpen bool
	// FailOpenUnknownPacket accepts packets that cannot be parsed, and packets
	// of a pod of this node that is still unknown when they cannot wait longer.
	FailOpenUnknownPacket bool
	// Learned has the domain names that pods have resolved. With nil, a rule that
	// names domains matches nothing.
	Learned policy.Learned
	// Verdicts records lasting decisions, so that the kernel need not ask again. With nil
	// it asks for every connection.
	Verdicts Verdicts
	// Flows records decisions. Nil records none.
	Flows *flows.Recorder
	// Accepted is called, from any goroutine, for each packet that is accepted and has
	// addresses, before its verdict is known. eitherWay reports that either end may have
	// opened its connection. It may be nil.
	Accepted func(p packet.Packet, eitherWay bool)
	// LogDenied logs denied packets, at most ten a second, and every ten seconds how
	// many were not logged. The same goes, apart from it, for packets that audited
	// policies would deny.
	LogDenied bool
	// Logger receives the packet log. Its zero value logs nothing.
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

// Enforcer decides packets by the snapshot of the latest Swap. All its methods may
// be called from any goroutine.
type Enforcer struct {
	cfg      Config
	snapshot atomic.Pointer[policy.Snapshot]
	pending  atomic.Pointer[map[netip.Addr]struct{}]
	behind   atomic.Pointer[map[uint32]Behind]
	metrics  *metrics
	denials  *denialLog
	audits   *audits
	sources  *newcomers
}

// New returns an Enforcer without a snapshot.
func New(cfg Config) *Enforcer {
	e := &Enforcer{cfg: cfg, metrics: newMetrics(cfg.Registerer), audits: newAudits(cfg.Registerer), sources: newNewcomers()}
	if cfg.LogDenied {
		e.denials = newDenialLog(cfg.Logger, deniedMessages)
		e.audits.log = newDenialLog(cfg.Logger, auditedMessages)
	}
	return e
}

// Swap makes s the snapshot by which packets are decided from now on.
func (e *Enforcer) Swap(s *policy.Snapshot) { e.snapshot.Store(s) }

// SetPending replaces the set of addresses whose packets, from and to them, are
// treated as those of an unknown pod. addrs must not be modified afterwards.
func (e *Enforcer) SetPending(addrs map[netip.Addr]struct{}) {
	if len(addrs) == 0 {
		e.pending.Store(nil)
		return
	}
	e.pending.Store(&addrs)
}

// isPending reports whether p is from or to an address of SetPending.
func (e *Enforcer) isPending(p packet.Packet) bool {
	pending := e.pending.Load()
	if pending == nil {
		return false
	}
	_, src := (*pending)[p.Src.Addr()]
	_, dst := (*pending)[p.Dst.Addr()]
	return src || dst
}

// Input is one packet and its metadata.
type Input struct {
	// Payload begins with the packet's IP header. It may be truncated.
	Payload []byte
	// ToHost is set if the packet is for this node itself.
	ToHost bool
	// Link is the index of the interface by which it came in, 0 for none.
	Link uint32
	// Marked is set if the packet is an ICMP error sent by a pod that conntrack relates
	// to an established connection, which may be a connection of other pods; and, of other
	// protocols than ICMP, if conntrack begins with the packet to track a connection that
	// it may not have opened.
	Marked bool
	// Pending is set if the result for the packet was Undecided or Unannounced before.
	Pending bool
	// Last is set if the packet cannot wait any longer: the result is Drop or Accept.
	Last bool
}

// Decide returns what becomes of one packet. It keeps no reference to the packet and
// does not allocate unless it logs.
func (e *Enforcer) Decide(in Input) Result { return e.process(in, false) }

// Audit is Decide for a packet that only audited policies select: what cannot be decided is
// accepted, because such a packet would not be queued without them. Nothing is remembered.
func (e *Enforcer) Audit(in Input) Result { return e.process(in, true) }

func (e *Enforcer) process(in Input, auditOnly bool) Result {
	start := time.Now()
	p, err := packet.Parse(in.Payload)
	r := e.decide(p, err, in, auditOnly, start)
	if err == nil && e.cfg.Accepted != nil && (r == Accept || r == Remember) {
		e.cfg.Accepted(p, in.eitherWay(p))
	}
	if r == Drop || r == Accept || r == Remember {
		e.metrics.observe(p, r, time.Since(start))
	}
	return r
}

// EvaluateClass decides about a class by the current snapshot, see
// policy.Snapshot.EvaluateClass. Without a snapshot nothing is lasting.
func (e *Enforcer) EvaluateClass(c packet.Class) (d policy.Decision, lasting bool) {
	s := e.snapshot.Load()
	if s == nil {
		return policy.Decision{}, false
	}
	return s.EvaluateClass(c)
}

// EvaluateOpened decides about the packet that opened a connection by the current snapshot.
// would is the decision with audited policies if it has another verdict, else nil. s is nil
// if there is no snapshot. It is not for the path of packets.
func (e *Enforcer) EvaluateOpened(p packet.Packet, toHost bool) (d policy.Decision, would *policy.Decision, s *policy.Snapshot) {
	if s = e.snapshot.Load(); s == nil {
		return d, nil, nil
	}
	q := policy.Query{Packet: p, ToHost: toHost, Learned: e.cfg.Learned, Defer: true}
	d, audited := s.EvaluateAudited(q)
	if audited {
		if w := s.Audit().Evaluate(q); w.Action != d.Action && w.Reason != policy.UnknownPod && w.Reason != policy.NotEvaluated {
			would = &w
		}
	}
	return d, would, s
}

// CountRemembered counts packets of a class on which the kernel gave the verdict of an
// earlier decision.
func (e *Enforcer) CountRemembered(c packet.Class, d policy.Decision, packets uint64) {
	e.metrics.remembered(c, d, packets)
	s := e.snapshot.Load()
	if s == nil {
		return
	}
	if !d.Allowed() {
		e.denials.remembered(c, s, packets)
	}
	if e.cfg.Flows != nil {
		e.cfg.Flows.Remembered(c, d, s, packets)
	}
}

func (e *Enforcer) decide(p packet.Packet, parseErr error, in Input, auditOnly bool, at time.Time) Result {
	if parseErr != nil {
		if !auditOnly {
			e.denials.unparsable(parseErr)
		}
		return e.metrics.failure(unparsable, auditOnly || e.cfg.FailOpenUnknownPacket)
	}
	s := e.snapshot.Load() // once: both directions are evaluated by the same snapshot
	if s == nil {
		return e.metrics.failure(noSnapshot, auditOnly || e.cfg.FailOpen)
	}
	senders, known := e.senders(&p, &in, s, auditOnly)
	if !known {
		return e.undecided(p, policy.Decision{Reason: policy.UnknownPod}, s, in, at)
	}
	if senders.OnePod {
		p.Src = senders.as(p.Src)
	}
	if !auditOnly && e.isPending(p) {
		return e.undecided(p, policy.Decision{Reason: policy.UnknownPod}, s, in, at)
	}
	if in.Marked && isOwnError(p, in.Payload) {
		return Accept
	}
	q := policy.Query{Packet: p, ToHost: in.ToHost, Learned: e.cfg.Learned, Defer: true, AwaitSource: !in.Last}
	eitherWay := in.eitherWay(p)
	d, audited := evaluate(s, &q, eitherWay)
	if senders.severalPods() && d.Reason != policy.UnknownPod {
		d = senders.evaluate(s, q)
		if !d.Allowed() && !in.Last && p.Src.Addr().IsGlobalUnicast() {
			return Undecided // it may be a new pod
		}
	}
	if d.Reason == policy.UnknownSource {
		if in.Pending {
			return Unannounced
		}
		switch e.sources.admit(q.Packet, time.Now()) {
		case admitted:
			return Unannounced
		case repeated:
			return Drop // the packet that waits is decided
		}
		q.AwaitSource = false
		d, audited = evaluate(s, &q, eitherWay)
	} else if in.Pending {
		e.noteKnown(s, p)
	}
	if d.Reason == policy.UnknownPod || d.Reason == policy.NotEvaluated {
		return e.undecided(p, d, s, in, at)
	}
	if eitherWay || e.isLate(&p, in.Payload, at) {
		return e.late(p, d)
	}
	if l := e.cfg.Logger.V(4); l.Enabled() {
		l.Info("Packet decided", "packet", p, "decision", d)
	}
	e.metrics.decision(d)
	if audited {
		e.recordAudited(&p, &d, s, q, at)
	} else {
		e.record(&p, &d, s, nil, at)
	}
	if auditOnly && d.Allowed() {
		return Accept
	}
	remember := e.remember(s, q, d, in.Payload)
	if d.Allowed() {
		return remember
	}
	if d.Direction == policy.Egress && s.NamesRefused(q) {
		e.metrics.namesRefused.Inc()
		e.denials.denied(p, d, s, namesRefused...)
		return Drop
	}
	e.denials.denied(p, d, s)
	return Drop
}

// evaluate decides about q, and reports whether the decision of audited policies may be another
// one. If either end may have opened the connection, q becomes the query that decides, and audited
// policies do not matter: they count attempts.
func evaluate(s *policy.Snapshot, q *policy.Query, eitherWay bool) (d policy.Decision, audited bool) {
	if eitherWay {
		d, *q = s.EvaluateLate(*q)
		return d, false
	}
	return s.EvaluateAudited(*q)
}

// noteKnown is called for a packet that has waited, perhaps because one of its ends was unknown.
func (e *Enforcer) noteKnown(s *policy.Snapshot, p packet.Packet) {
	for _, addr := range [...]netip.Addr{p.Src.Addr(), p.Dst.Addr()} {
		if s.Endpoint(addr) != nil {
			e.sources.known(addr)
		}
	}
}

// recordAudited records a decision with that of audited policies.
func (e *Enforcer) recordAudited(p *packet.Packet, d *policy.Decision, s *policy.Snapshot, q policy.Query, at time.Time) {
	if would, other := e.audits.evaluate(s.Audit(), q, *d); other {
		e.record(p, d, s, &would, at)
		return
	}
	e.record(p, d, s, nil, at)
}

// record records a decision, if decisions are recorded. would is the one with audited policies
// if it has another verdict, else nil.
func (e *Enforcer) record(p *packet.Packet, d *policy.Decision, s *policy.Snapshot, would *policy.Decision, at time.Time) {
	if e.cfg.Flows != nil {
		e.cfg.Flows.Decided(p, d, s, would, at)
	}
}

// remember has the decision d about q remembered if it is lasting. It returns the result
// for a packet that d allows.
func (e *Enforcer) remember(s *policy.Snapshot, q policy.Query, d policy.Decision, payload []byte) Result {
	if e.cfg.Verdicts == nil {
		return Accept
	}
	c, ok := packet.ClassOf(q.Packet, payload)
	switch {
	case !ok || !s.Lasting(q, d):
	case !d.Allowed():
		e.cfg.Verdicts.Denied(c, d)
	case e.cfg.Verdicts.Allowed(c, d):
		return Remember
	}
	return Accept
}

// isOwnError reports whether p is an ICMP error about a packet that its destination
// has sent to its source. An endpoint may report errors of its own connections only:
// the sender chooses what an ICMP error quotes.
func isOwnError(p packet.Packet, payload []byte) bool {
	about, ok := packet.ParseError(payload)
	return ok && about.Src.Addr() == p.Dst.Addr() && about.Dst.Addr() == p.Src.Addr()
}

// undecided returns the result for a packet whose pod is not known yet, or whose peer
// is not evaluated yet. Either takes a moment, so the packet waits before it is dropped.
func (e *Enforcer) undecided(p packet.Packet, d policy.Decision, s *policy.Snapshot, in Input, at time.Time) Result {
	if !in.Last {
		return Undecided
	}
	failure, open := notEvaluated, false
	if d.Reason == policy.UnknownPod {
		failure, open = unknownPod, e.cfg.FailOpenUnknownPacket
	}
	if open {
		d.Action = policy.Allow
	}
	if in.eitherWay(p) || e.isLate(&p, in.Payload, at) {
		if open {
			e.metrics.failure(failure, open) // it passed
		}
		return e.late(p, d)
	}
	r := e.metrics.failure(failure, open)
	if r == Drop {
		e.denials.denied(p, d, s)
	}
	e.record(&p, &d, s, nil, at)
	return r
}
