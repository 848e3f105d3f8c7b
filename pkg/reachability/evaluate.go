package reachability

import (
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Cause is what an answer rests on.
type Cause uint8

// The causes.
const (
	NoCommonFamily  Cause = iota // the sides have no address of one family: no connection
	PortNotDeclared              // the destination declares no port of that name: no connection
	ByPolicy                     // the agents' decision
	Itself                       // a pod to its own address: always allowed
	FromNode                     // a node to its own pods, or itself: always allowed
	ToOwnNode                    // a pod to its own node, which no rule may deny it: allowed
)

// Answer reports whether a connection is allowed.
type Answer struct {
	Allowed bool
	Cause   Cause
	// Query is the first packet of the connection, the one that is evaluated. It is
	// zero where there is no connection.
	Query policy.Query
	// Decision is the agents', with ByPolicy.
	Decision policy.Decision
}

// clientPort stands for the port of a client: one of those that Linux takes for
// outgoing connections. Policies do not look at it.
const clientPort = 40000

// Evaluate decides whether src may open a connection to dst: egress as the agent on
// the source's node does, ingress as the one on the destination's.
func (c *Cluster) Evaluate(src, dst *Endpoint, port Port, family Family) Answer {
	from, to, ok := addresses(src, dst, family)
	if !ok {
		return Answer{Cause: NoCommonFamily}
	}
	number, ok := port.on(dst)
	if !ok {
		return Answer{Cause: PortNotDeclared}
	}
	q := policy.Query{Packet: port.packet(from, to, number), ToHost: dst.onHost() && sameNode(src, dst)}
	if cause, ok := c.alwaysAllowed(src, dst, &q); ok {
		return Answer{Allowed: true, Cause: cause, Query: q}
	}
	d := c.snapshot.Evaluate(q)
	return Answer{Allowed: d.Allowed(), Cause: ByPolicy, Query: q, Decision: d}
}

// AllowedIn reports whether one direction lets src open a connection to dst, as Evaluate
// does for both.
func (c *Cluster) AllowedIn(d policy.Direction, src, dst *Endpoint, port Port, family Family) bool {
	a := c.Evaluate(src, dst, port, family)
	if a.Cause != ByPolicy {
		return a.Allowed
	}
	return c.snapshot.EvaluateDirection(d, a.Query).Allowed()
}

// alwaysAllowed reports traffic that agents do not evaluate: that of a node with the
// pods on it, probes and host-network pods included, unless an administrator may
// deny it to a pod; and that of a pod with itself, which never leaves it.
func (c *Cluster) alwaysAllowed(src, dst *Endpoint, q *policy.Query) (cause Cause, ok bool) {
	switch from, to := q.Packet.Src.Addr(), q.Packet.Dst.Addr(); {
	case src.onHost():
		return FromNode, sameNode(src, dst)
	case q.ToHost:
		return ToOwnNode, !c.toHost[from]
	case src.Kind == Pod && dst.Kind == Pod:
		return Itself, c.snapshot.Endpoint(from) == c.snapshot.Endpoint(to)
	}
	return ByPolicy, false
}

func sameNode(src, dst *Endpoint) bool { return src.Node == dst.Node && src.Node != "" }

func (p Port) packet(from, to netip.Addr, number uint16) packet.Packet {
	proto := p.Proto
	if !proto.HasPorts() {
		if proto == packet.ICMP && to.Is6() {
			proto = packet.ICMPv6
		}
		return packet.Packet{Src: netip.AddrPortFrom(from, 0), Dst: netip.AddrPortFrom(to, 0), Proto: proto}
	}
	return packet.Packet{Src: netip.AddrPortFrom(from, clientPort), Dst: netip.AddrPortFrom(to, number), Proto: proto}
}
