// Package event has what the agent decided about a packet, for the parts that observe decisions and
// take no part in them.
package event

import (
	"net/netip"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Result is what happens to one packet, by a policy.Decision or the failure policy.
type Result uint8

const (
	Drop        Result = iota // the zero value fails closed
	Accept                    // let the packet pass
	ShortWait                 // see policy.ShortWait
	LongWait                  // see policy.LongWait
	AcceptClass               // Accept, and the kernel may accept further packets of the class
	Reject                    // Drop, and the sender gets an answer
)

// Waits reports whether the packet has no verdict yet.
func (r Result) Waits() bool { return r == ShortWait || r == LongWait }

// Accepts reports whether the packet passes.
func (r Result) Accepts() bool { return r == Accept || r == AcceptClass }

// Failure is why policies cannot decide a packet.
type Failure uint8

const (
	NoFailure    Failure = iota
	Unparsable           // it cannot be parsed
	NoSnapshot           // no policies are known yet
	UnknownPod           // one of its ends may be a pod that is not known
	NotEvaluated         // which rules select its peer is not known yet, or which pod has sent it
	Repeated             // the same packet waits already, and gets the verdict
)

// Audit is what audited policies would do with a packet.
type Audit uint8

const (
	NotAudited     Audit = iota // no different verdict
	AuditDiffers                // another verdict than that of the packet
	AuditUndecided              // it is not known
)

// Event is one packet and what was decided about it.
type Event struct {
	// Packet is the packet in the direction of the end that opened its connection, the zero Packet
	// if it cannot be parsed: then Err has the reason.
	Packet packet.Packet
	Err    error
	// EitherWay is set if either end may have opened the connection of the packet.
	EitherWay bool
	// Pending is set if an earlier result for the packet was to wait.
	Pending bool
	// At is when the packet was read, and Latency the time that the decision took.
	At      time.Time
	Latency time.Duration

	// Snapshot decided the packet, nil if there is none yet. Query is what it was asked last, with
	// the packet as policies see it.
	Snapshot *policy.Snapshot
	Query    policy.Query
	Decision policy.Decision
	// Failure is not NoFailure if the failure policy applies, or the packet waits.
	Failure Failure
	// Related is set for an ICMP error about a connection of its own ends, which policies do not decide.
	Related bool
	// Late is set for a packet that does not begin a connection: it is no attempt to connect.
	Late bool
	// Would is the decision with audited policies if Audit is AuditDiffers.
	Audit Audit
	Would policy.Decision
	// Lasting is set if Decision holds for all packets of Class until the snapshot changes. It is
	// known only if the kernel may decide classes.
	Lasting bool
	Class   packet.Class

	// Result is Accept or Drop if ByKernel is set: the kernel has decided Count packets of Class by
	// an earlier decision.
	Result   Result
	ByKernel bool
	Count    uint64
}

// Tap observes events. It is called from any goroutine before the verdict is sent, must not block,
// and must not keep the event.
type Tap = func(*Event)

// Accepted reports whether the agent accepts the packet now.
func (ev *Event) Accepted() bool {
	return ev.Result.Accepts() && !ev.ByKernel && ev.Failure != Unparsable
}

// Wanted calls yield with each end of a packet that begins to wait for a pod which is not known.
func (ev *Event) Wanted(yield func(netip.Addr)) {
	if ev.Pending || !ev.Result.Waits() || ev.Failure != UnknownPod {
		return
	}
	for _, addr := range [...]netip.Addr{ev.Query.Packet.Src.Addr(), ev.Query.Packet.Dst.Addr()} {
		if ev.Snapshot.Endpoint(addr) == nil {
			yield(addr)
		}
	}
}
