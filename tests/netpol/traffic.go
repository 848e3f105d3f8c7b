package netpol

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ICMP is the protocol of echo requests, ICMPv6 over IPv6. NetworkPolicy cannot name it;
// rules without ports match it.
const ICMP corev1.Protocol = "ICMP"

// Via is how a connection reaches a pod.
type Via uint8

// The ways to reach a pod.
const (
	Direct  Via = iota // by the pod's address
	Service            // by the address of a Service with this pod as its only endpoint
	// NodePort is by a port of the pod's node, with externalTrafficPolicy Local: hosts outside keep
	// their addresses.
	NodePort
	// LoadBalancer is by the address of a load balancer, which nodes translate, with
	// externalTrafficPolicy Cluster: clients may get the address of a node.
	LoadBalancer
)

// viaFeatures are the features that ways to reach a pod need.
var viaFeatures = map[Via]Feature{Service: Services, NodePort: NodePorts, LoadBalancer: LoadBalancers}

// String returns, for example, "via Service", and "" for Direct.
func (v Via) String() string {
	return [...]string{"", "via Service", "via NodePort", "via load balancer"}[v]
}

// Traffic is the traffic of one truth table. In an argument of Reachability.For, zero
// fields match any value.
type Traffic struct {
	Protocol corev1.Protocol
	Port     int32 // unused with ICMP
	Family   corev1.IPFamily
	Via      Via
}

// TCP returns TCP traffic to port, of any family; port 0 is any port.
func TCP(port int32) Traffic { return Traffic{Protocol: corev1.ProtocolTCP, Port: port} }

// UDP returns UDP traffic to port, of any family; port 0 is any port.
func UDP(port int32) Traffic { return Traffic{Protocol: corev1.ProtocolUDP, Port: port} }

// SCTP returns SCTP traffic to port, of any family; port 0 is any port.
func SCTP(port int32) Traffic { return Traffic{Protocol: corev1.ProtocolSCTP, Port: port} }

// Over returns the traffic over one family.
func (t Traffic) Over(family corev1.IPFamily) Traffic {
	t.Family = family
	return t
}

// String returns, for example, "TCP 80 IPv4 via Service", without fields that are zero.
func (t Traffic) String() string {
	text := string(t.Protocol)
	add := func(field string) {
		if text != "" && field != "" {
			text += " "
		}
		text += field
	}
	if t.Port != 0 {
		add(strconv.Itoa(int(t.Port)))
	}
	add(string(t.Family))
	add(t.Via.String())
	return text
}

// covers reports whether t matches other. Zero fields of t match any value.
func (t Traffic) covers(other Traffic) bool {
	return (t.Protocol == "" || t.Protocol == other.Protocol) &&
		(t.Port == 0 || t.Port == other.Port) &&
		(t.Family == "" || t.Family == other.Family) &&
		(t.Via == Direct || t.Via == other.Via)
}

// Connection is one attempt to connect.
type Connection struct {
	From, To string // names of the state's endpoints
	Traffic
	// Silence is how long to wait for an answer before the outcome is TimedOut.
	Silence time.Duration
}

// String returns, for example, "x/a -> y/b TCP 80 IPv4".
func (c Connection) String() string {
	return fmt.Sprintf("%s -> %s %s", c.From, c.To, c.Traffic)
}

// Outcome is the outcome of an attempt.
type Outcome uint8

// The outcomes. Only Connected means that the server answered.
const (
	Unobservable Outcome = iota // the attempt could not be made
	TimedOut                    // no answer
	Refused                     // a reset or an ICMP error
	Connected
)

// String returns, for example, "timed out".
func (o Outcome) String() string {
	return [...]string{"not observed", "timed out", "refused", "connected"}[o]
}
