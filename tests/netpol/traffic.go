package netpol

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ICMP is the protocol of echo requests, ICMPv6 over IPv6. NetworkPolicy has no
// name for it; rules without ports match it.
const ICMP corev1.Protocol = "ICMP"

// Via is the way that a connection takes to a pod.
type Via uint8

// The ways.
const (
	Direct  Via = iota // to the pod's address
	Service            // to the address of a Service that has this pod alone behind it
)

// Traffic is what one truth table is about. As an argument of Reachability.For
// its zero fields mean any.
type Traffic struct {
	Protocol corev1.Protocol
	Port     int32 // of no meaning to ICMP
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

// String returns, for example, "TCP 80 IPv4 via Service"; fields that mean any are
// left out.
func (t Traffic) String() string {
	text := string(t.Protocol)
	add := func(word string) {
		if text != "" && word != "" {
			text += " "
		}
		text += word
	}
	if t.Port != 0 {
		add(strconv.Itoa(int(t.Port)))
	}
	add(string(t.Family))
	if t.Via == Service {
		add("via Service")
	}
	return text
}

// covers tells whether other is of the kind that t, with its zero fields, means.
func (t Traffic) covers(other Traffic) bool {
	return (t.Protocol == "" || t.Protocol == other.Protocol) &&
		(t.Port == 0 || t.Port == other.Port) &&
		(t.Family == "" || t.Family == other.Family) &&
		(t.Via == Direct || t.Via == other.Via)
}

// Connection is one attempt: the first packet of a new connection, and the answer.
type Connection struct {
	From, To string // names of the state's endpoints
	Traffic
	// Silence is how long no answer is waited for until it counts as none.
	Silence time.Duration
}

// String returns, for example, "x/a -> y/b TCP 80 IPv4".
func (c Connection) String() string {
	return fmt.Sprintf("%s -> %s %s", c.From, c.To, c.Traffic)
}

// Outcome is how an attempt ended.
type Outcome uint8

// The outcomes. Only Connected means that an answer came from the other side.
const (
	Unobservable Outcome = iota // the attempt could not be made: nothing is known
	TimedOut                    // silence
	Refused                     // a reset or an ICMP error said no
	Connected
)

// String returns the outcome in words.
func (o Outcome) String() string {
	return [...]string{"not observed", "timed out", "refused", "connected"}[o]
}
