// Package enforce answers one packet: parse, evaluate, or follow the failure
// policy when there is no answer, then count and log. It knows neither where
// packets come from nor how snapshots are made.
package enforce

import (
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
	Hold                  // ask again in a moment: the packet's pod may be known by then
)

// Config holds what an Enforcer needs to be told.
type Config struct {
	// FailOpen accepts packets while there is no snapshot.
	FailOpen bool
	// FailOpenUnknownPacket accepts packets that cannot be parsed, and packets
	// of a pod of this node that stays unknown while it is held.
	FailOpenUnknownPacket bool
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

// Judge answers the packet that begins at payload[0] with its IP header, and
// keeps no reference to it. With last it never answers Hold. It does not
// allocate unless it logs.
func (e *Enforcer) Judge(payload []byte, last bool) Verdict {
	start := time.Now()
	p, err := packet.Parse(payload)
	v := e.judge(p, err, last)
	if v != Hold {
		e.metrics.observe(p, v, time.Since(start))
	}
	return v
}

func (e *Enforcer) judge(p packet.Packet, parseErr error, last bool) Verdict {
	if parseErr != nil {
		e.denials.unparsable(parseErr)
		return e.metrics.failure(unparsable, e.cfg.FailOpenUnknownPacket)
	}
	s := e.snapshot.Load() // once: both directions are asked of the same cluster
	if s == nil {
		return e.metrics.failure(noSnapshot, e.cfg.FailOpen)
	}
	d := s.Evaluate(p)
	if l := e.cfg.Logger.V(4); l.Enabled() {
		l.Info("Packet decided", "packet", p, "decision", d)
	}
	if d.Reason == policy.UnknownPod {
		return e.judgeUnknown(p, d, s, last)
	}
	e.metrics.decision(d)
	if d.Verdict == policy.Allow {
		return Accept
	}
	e.denials.denied(p, d, s)
	return Drop
}

// judgeUnknown answers a packet of a pod that is not known yet. A new pod's
// status takes a moment to arrive, so the packet is held before it is dropped.
func (e *Enforcer) judgeUnknown(p packet.Packet, d policy.Decision, s *policy.Snapshot, last bool) Verdict {
	if !last {
		return Hold
	}
	v := e.metrics.failure(unknownPod, e.cfg.FailOpenUnknownPacket)
	if v == Drop {
		e.denials.denied(p, d, s)
	}
	return v
}
