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
	NodeLocal                    // traffic between a node and its own pods, or itself: always allowed
)

// Answer tells whether a connection is allowed.
type Answer struct {
	Allowed bool
	Cause   Cause
	// Packet is the first of the connection, the one that is judged. It is zero
	// unless ByPolicy or NodeLocal.
	Packet packet.Packet
	// Decision is the agents', with ByPolicy.
	Decision policy.Decision
}

// clientPort stands for the port of a client: one of those that Linux takes for
// outgoing connections. Policies do not look at it.
const clientPort = 40000

// Judge tells whether src may open a connection to dst. Egress is asked of the
// agent on the source's node, ingress of the one on the destination's.
func (c *Cluster) Judge(src, dst *Side, port Port, family Family) Answer {
	from, to, ok := addresses(src, dst, family)
	if !ok {
		return Answer{Cause: NoCommonFamily}
	}
	number, ok := port.on(dst)
	if !ok {
		return Answer{Cause: PortNotDeclared}
	}
	p := port.packet(from, to, number)
	if sameHost(src, dst) {
		return Answer{Allowed: true, Cause: NodeLocal, Packet: p}
	}
	d := c.snapshot.Evaluate(p)
	return Answer{Allowed: d.Verdict == policy.Allow, Cause: ByPolicy, Packet: p, Decision: d}
}

// sameHost tells traffic that agents are not asked about: between a node and
// the pods on it, probes and host-network pods included.
func sameHost(src, dst *Side) bool {
	return (src.onHost() || dst.onHost()) && src.Node == dst.Node && src.Node != ""
}

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
