package enforce

import (
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// eitherWay reports whether either end may have opened the connection of p, the packet of in.
// The kernel says so of TCP; of SCTP it does not read the chunk.
func (in *Input) eitherWay(p packet.Packet) bool {
	return in.Marked && p.Proto != packet.ICMP && p.Proto != packet.ICMPv6 && !packet.OpensAssociation(p, in.Payload)
}

// isLate reports whether p, read from payload, does not begin a connection. Such packets reach
// the agent when the kernel does not track their connection: it was silent for too long, it is
// older than the tracking, the table was flushed, or the pod at the other end is gone. Often
// their sender is the server, and their destination port one that the client had chosen.
func (e *Enforcer) isLate(p *packet.Packet, payload []byte, at time.Time) bool {
	switch packet.StageOf(*p, payload) {
	case packet.Late:
		return true
	case packet.Answer:
		return e.cfg.Flows != nil && e.cfg.Flows.Answers(p, at)
	}
	return false
}

// late returns the result for a late packet on which the decision is d. Policies decide it like
// a first packet, or like one of each end, but it is no attempt to connect: it is counted by
// itself alone, and is neither recorded nor remembered, because the next packet of its class may
// be an attempt.
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
