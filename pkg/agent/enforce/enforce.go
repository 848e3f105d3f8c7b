// Package enforce decides single packets. It parses a packet, evaluates it with the current snapshot
// or applies the failure policy, and passes the event to taps. It does not know where packets come
// from, how snapshots are compiled, or who observes decisions.
package enforce

import (
	"net/netip"
	"sync/atomic"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Config is the configuration of an Enforcer.
type Config struct {
	// FailOpen accepts packets while there is no snapshot.
	FailOpen bool
	// FailOpenUnknownPacket accepts packets that cannot be parsed, and packets
	// of a pod of this node that is still unknown when they cannot wait longer.
	FailOpenUnknownPacket bool
	// Learned holds the domain names that pods have resolved. If it is nil, a rule that names
	// domains matches nothing.
	Learned policy.Learned
	// Routes are the routes of the node. Nil knows none.
	Routes policy.Routes
	// AcceptClass reports whether the kernel may accept the class of the event, which is allowed and
	// whose decision is lasting. Nil has the kernel ask for every connection.
	AcceptClass func(*event.Event) bool
	// Taps get an event for each packet, in this order, before its verdict is sent.
	Taps []event.Tap
}

// Enforcer decides packets with the snapshot of the latest Swap. Its methods may be called
// from any goroutine.
type Enforcer struct {
	cfg        Config
	snapshot   atomic.Pointer[policy.Snapshot]
	unknown    atomic.Pointer[map[netip.Addr]struct{}]
	interfaces atomic.Pointer[Interfaces]
	sources    *newcomers
	queries    queries
}

// New returns an Enforcer without a snapshot.
func New(cfg Config) *Enforcer {
	return &Enforcer{cfg: cfg, sources: newNewcomers(), queries: queries{seed: packet.NewSeed(), epoch: time.Now()}}
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
// allocate.
func (e *Enforcer) Decide(in Input) event.Result { return e.process(in, false) }

// Audit is Decide for a packet that only audited policies select. It accepts what cannot be
// decided, because the packet would not be queued without audited policies, and remembers
// nothing.
func (e *Enforcer) Audit(in Input) event.Result { return e.process(in, true) }

// process has the steps of each packet: parse and decide, pass the event to the taps, return the result.
func (e *Enforcer) process(in Input, auditOnly bool) event.Result {
	v := evaluations.Get().(*evaluation)
	v.in, v.auditOnly = in, auditOnly
	v.At, v.Pending, v.Count = time.Now(), in.Pending, 1
	e.decide(v)
	v.Latency = time.Since(v.At)
	e.report(&v.Event)
	r := v.Result
	*v = evaluation{} // keep no reference to a packet or a snapshot
	evaluations.Put(v)
	return r
}

// report passes a decision to the taps.
func (e *Enforcer) report(ev *event.Event) {
	if ev.Query.Packet.Proto == packet.UDP && ev.Decision.Allowed() && !ev.Late && ev.Snapshot != nil {
		e.queries.add(&ev.Query.Packet, ev.At)
	}
	for _, tap := range e.cfg.Taps {
		tap(ev)
	}
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

// ReportClass passes packets of a class that the kernel has decided as d to the taps.
func (e *Enforcer) ReportClass(c packet.Class, d policy.Decision, packets uint64) {
	ev := event.Event{
		Packet: c.Packet(), Class: c, Query: policy.Query{Packet: c.Packet()}, At: time.Now(),
		Snapshot: e.snapshot.Load(), Decision: d, ByKernel: true, Count: packets,
	}
	if d.Allowed() {
		ev.Result = event.Accept
	}
	e.report(&ev)
}
