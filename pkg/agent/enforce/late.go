package enforce

import (
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// eitherWay reports whether either end may have opened the connection of p, the packet of in.
// The kernel's mark is exact for TCP; for SCTP the chunk tells, which the kernel does not
// read.
func (in *Input) eitherWay(p packet.Packet) bool {
	return in.Marked && p.Proto != packet.ICMP && p.Proto != packet.ICMPv6 && !packet.OpensAssociation(p, in.Payload)
}

// isLate reports whether the packet does not begin a connection. Policies decide it like a first
// packet, or like one of each end, but it is no attempt to connect, and the next packet of its class may
// be one. Such packets reach the agent while the marks of established connections may be wrong, and when
// the kernel does not track their connection: it was idle for too long or opened before the tracking
// began, the table was flushed, or the pod at the other end is gone. Often the sender is the server, and
// the destination port is the client's ephemeral port.
func (e *Enforcer) isLate(v *evaluation) bool {
	if v.EitherWay || v.in.Established {
		return true
	}
	switch packet.StageOf(v.Query.Packet, v.in.Payload) {
	case packet.Late:
		return true
	case packet.Answer:
		return e.queries.answers(&v.Query.Packet, v.At)
	}
	return false
}
