package reachability

import (
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Cause is the basis of an answer.
type Cause uint8

// The causes.
const (
	NoCommonFamily  Cause = iota // the endpoints have no common family: no connection
	PortNotDeclared              // the destination declares no port of that name: no connection
	ByPolicy                     // decided by the agents
	Itself                       // a pod to its own address: always allowed
	FromNode                     // a node to itself or its own pods: always allowed
	ToOwnNode                    // a pod to its own node, which no rule may deny: allowed
)

// Answer reports whether a connection is allowed.
type Answer struct {
	Allowed bool
	Cause   Cause
	// Query is the connection's first packet, which is evaluated. It is zero if there is no
	// connection.
	Query policy.Query
	// Decision is the agents' decision if Cause is ByPolicy.
	Decision policy.Decision
}

// clientPort stands for any ephemeral port of Linux. Policies do not look at the client's
// port.
const clientPort = 40000

// Evaluate decides whether src may open a connection to dst: egress like the agent on the
// source's node, ingress like the agent on the destination's.
func (c *Cluster) Evaluate(src, dst *Endpoint, port Port, family Family) Answer {
	return c.evaluate(src, dst, port, family, false)
}

// evaluate is Evaluate. If twin is set, an endpoint and itself are two pods of its kind.
func (c *Cluster) evaluate(src, dst *Endpoint, port Port, family Family, twin bool) Answer {
	from, to, ok := addresses(src, dst, family)
	if !ok {
		return Answer{Cause: NoCommonFamily}
	}
	number, ok := port.numberOn(dst)
	if !ok {
		return Answer{Cause: PortNotDeclared}
	}
	q := policy.Query{Packet: port.packet(from, to, number), ToHost: dst.onHost() && sameNode(src, dst), Sender: src.placeholder, Receiver: dst.placeholder}
	if cause, ok := c.alwaysAllowed(src, dst, &q); ok && !(twin && cause == Itself) {
		return Answer{Allowed: true, Cause: cause, Query: q}
	}
	d := c.decide(q, src, dst)
	return Answer{Allowed: d.Allowed(), Cause: ByPolicy, Query: q, Decision: d}
}

// Allowed reports whether src may open a connection to dst at all places where they may be.
func (c *Cluster) Allowed(src, dst *Endpoint, port Port, family Family) bool {
	allowed := true
	c.EachPlace(src, dst, func(from, to *Endpoint) { allowed = allowed && c.Evaluate(from, to, port, family).Allowed })
	return allowed
}

// AllowedIn is Allowed for one direction. Evaluate checks both.
func (c *Cluster) AllowedIn(d policy.Direction, src, dst *Endpoint, port Port, family Family) bool {
	allowed := true
	c.EachPlace(src, dst, func(from, to *Endpoint) { allowed = allowed && c.allowedIn(d, from, to, port, family) })
	return allowed
}

func (c *Cluster) allowedIn(d policy.Direction, src, dst *Endpoint, port Port, family Family) bool {
	allowed, _ := c.inDirection(d, src, dst, port, family, false)
	return allowed
}

// inDirection reports whether a connection is allowed in one direction, and by which policies. If
// twin is set, an endpoint and itself are two pods of its kind.
func (c *Cluster) inDirection(d policy.Direction, src, dst *Endpoint, port Port, family Family, twin bool) (allowed bool, by []*policy.Ref) {
	a := c.evaluate(src, dst, port, family, twin)
	if a.Cause != ByPolicy {
		return a.Allowed, nil
	}
	subject := src
	if d == policy.Ingress {
		subject = dst
	}
	snapshot := c.snapshotFor(&a.Query)
	if c.disputes.has(a.Query.Packet.Src.Addr(), a.Query.Packet.Dst.Addr()) {
		snapshot = c.viewOf(subject)
	}
	decision := snapshot.EvaluateDirection(d, a.Query)
	switch chain := c.chainOf(subject, d == policy.Egress); {
	case decision.Reason == policy.RuleMatched:
		by = []*policy.Ref{decision.Policy}
	case decision.Reason == policy.Isolated && chain != nil:
		by = chain.Policies
	}
	return decision.Allowed(), by
}

// alwaysAllowed reports whether agents do not evaluate the traffic. This is traffic between
// a node and its own pods, such as probes and connections of host-network pods, unless an
// administrator's rule may deny it to a pod; and traffic of a pod to itself, which does not
// leave the pod.
func (c *Cluster) alwaysAllowed(src, dst *Endpoint, q *policy.Query) (cause Cause, ok bool) {
	switch from, to := src.knownAt(q.Packet.Src.Addr()), dst.knownAt(q.Packet.Dst.Addr()); {
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
