// Package enforce answers one packet: parse, evaluate, or follow the failure
// policy when there is no answer, then count and log. It knows neither where
// packets come from nor how snapshots are made.
package enforce

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Verdict is the answer to one packet.
type Verdict uint8

const (
	Drop   Verdict = iota // the zero value fails closed
	Accept                // let the packet go on
	Hold                  // ask again in a moment: the packet's pod may be known, or its peer evaluated, by then
)

// Config holds what an Enforcer needs to be told.
type Config struct {
	// FailOpen accepts packets while there is no snapshot.
	FailOpen bool
	// FailOpenUnknownPacket accepts packets that cannot be parsed, and packets
	// of a pod of this node that stays unknown while it is held.
	FailOpenUnknownPacket bool
	// Learned has the domain names that pods have learned. Nil knows none, and
	// then a rule that names domains matches nothing.
	Learned policy.Learned
	// LogDenied logs denied packets, at most ten a second.
	LogDenied bool
	// Logger receives the packet log. Its zero value logs nothing.
	Logger klog.Logger
	// Registerer receives the metrics of this package.
	Registerer prometheus.Registerer
}

// Enforcer judges packets by the snapshot that was swapped in last. All its
// methods may be called from any goroutine.
type Enforcer struct {
	cfg      Config
	snapshot atomic.Pointer[policy.Snapshot]
	held     atomic.Pointer[map[netip.Addr]struct{}]
	metrics  *metrics
	denials  *denialLog
}

// New returns an Enforcer without a snapshot.
func New(cfg Config) *Enforcer {
	e := &Enforcer{cfg: cfg, metrics: newMetrics(cfg.Registerer)}
	if cfg.LogDenied {
		e.denials = newDenialLog(cfg.Logger)
	}
	return e
}

// Swap makes s the snapshot for every packet that is judged from now on.
func (e *Enforcer) Swap(s *policy.Snapshot) { e.snapshot.Store(s) }

// Hold has all packets from and to addrs treated as those of a pod that is not
// known, until it is called again. addrs must not change any more.
func (e *Enforcer) Hold(addrs map[netip.Addr]struct{}) {
	if len(addrs) == 0 {
		e.held.Store(nil)
		return
	}
	e.held.Store(&addrs)
}

// holds reports whether p is from or to an address of Hold.
func (e *Enforcer) holds(p packet.Packet) bool {
	held := e.held.Load()
	if held == nil {
		return false
	}
	_, src := (*held)[p.Src.Addr()]
	_, dst := (*held)[p.Dst.Addr()]
	return src || dst
}

// Question is one packet and what is known of it.
type Question struct {
	// Payload begins with the packet's IP header. It may be cut.
	Payload []byte
	// ToHost tells that the packet is for this node itself.
	ToHost bool
	// Marked tells that the packet is an ICMP error of a pod that is related to an
	// established connection, whosever that is.
	Marked bool
	// Last tells that Hold is no answer any more.
	Last bool
}

// Judge answers one packet and keeps no reference to it. It does not allocate
// unless it logs.
func (e *Enforcer) Judge(q Question) Verdict {
	start := time.Now()
	p, err := packet.Parse(q.Payload)
	v := e.judge(p, err, q)
	if v != Hold {
		e.metrics.observe(p, v, time.Since(start))
	}
	return v
}

func (e *Enforcer) judge(p packet.Packet, parseErr error, q Question) Verdict {
	if parseErr != nil {
		e.denials.unparsable(parseErr)
		return e.metrics.failure(unparsable, e.cfg.FailOpenUnknownPacket)
	}
	s := e.snapshot.Load() // once: both directions are asked of the same cluster
	if s == nil {
		return e.metrics.failure(noSnapshot, e.cfg.FailOpen)
	}
	if e.holds(p) {
		return e.judgeUndecided(p, policy.Decision{Reason: policy.UnknownPod}, s, q.Last)
	}
	if q.Marked && isOwnError(p, q.Payload) {
		return Accept
	}
	d := s.Judge(policy.Query{Packet: p, ToHost: q.ToHost, Learned: e.cfg.Learned, Defer: true})
	if l := e.cfg.Logger.V(4); l.Enabled() {
		l.Info("Packet decided", "packet", p, "decision", d)
	}
	if d.Reason == policy.UnknownPod || d.Reason == policy.NotEvaluated {
		return e.judgeUndecided(p, d, s, q.Last)
	}
	e.metrics.decision(d)
	if d.Verdict == policy.Allow {
		return Accept
	}
	e.denials.denied(p, d, s)
	return Drop
}

// isOwnError reports whether p is an ICMP error about a packet that its destination
// has sent to its source. An end of a connection may report about that connection,
// and about nobody else's: an error carries what its sender likes.
func isOwnError(p packet.Packet, payload []byte) bool {
	about, ok := packet.ParseError(payload)
	return ok && about.Src.Addr() == p.Dst.Addr() && about.Dst.Addr() == p.Src.Addr()
}

// judgeUndecided answers a packet whose pod is not known yet, or whose peer is not
// evaluated yet. Either takes a moment, so the packet is held before it is dropped.
func (e *Enforcer) judgeUndecided(p packet.Packet, d policy.Decision, s *policy.Snapshot, last bool) Verdict {
	if !last {
		return Hold
	}
	failure, open := notEvaluated, false
	if d.Reason == policy.UnknownPod {
		failure, open = unknownPod, e.cfg.FailOpenUnknownPacket
	}
	v := e.metrics.failure(failure, open)
	if v == Drop {
		e.denials.denied(p, d, s)
	}
	return v
}
