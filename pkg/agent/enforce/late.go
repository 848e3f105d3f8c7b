package enforce

import (
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// eitherWay reports whether either end may have opened the connection of p, the packet of in.
// The kernel's mark is exact for TCP; for SCTP the chunk tells, which the kernel does not
// read.
func (in *Input) eitherWay(p packet.Packet) bool {
	return in.Marked && p.Proto != packet.ICMP && p.Proto != packet.ICMPv6 && !packet.OpensAssociation(p, in.Payload)
}

// isLate reports whether p, the packet of in, does not begin a connection. Such packets reach the agent
// while the marks of established connections may be wrong, and when the kernel does not track their
// connection: it was idle for too long or opened before the tracking began, the table was flushed, or the
// pod at the other end is gone. Often the sender is the server, and the destination port is the client's
// ephemeral port.
func (e *Enforcer) isLate(p *packet.Packet, in *Input, at time.Time) bool {
	if in.Established {
		return true
	}
	switch packet.StageOf(*p, in.Payload) {
	case packet.Late:
		return true
	case packet.Answer:
		return e.cfg.Flows != nil && e.cfg.Flows.Answers(p, at)
	}
	return false
}

// late returns the result for a late packet decided as d. Policies decide it like a first
// packet, or like one of each end, but it is no attempt to connect. It has its own counter, and
// is not recorded or remembered, because the next packet of its class may be an attempt.
func (e *Enforcer) late(p packet.Packet, d policy.Decision) Result {
	if l := e.cfg.Logger.V(4); l.Enabled() {
		l.Info("Packet decided that does not begin a connection", "packet", p, "decision", d)
	}
	if e.cfg.Flows != nil {
		e.cfg.Flows.Late()
	}
	r := Drop
	if d.Allowed() {
		r = Accept
	}
	e.metrics.late[protocolLabel(p.Proto)][r].Inc()
	return r
}
