package policy

import "sigs.k8s.io/kube-network-policies/pkg/packet"

// Explanation is a decision and the way to it: what each direction's chain was
// asked and what it said.
type Explanation struct {
	Decision Decision
	// Directions are the two answers of which Decision is one. A pod that talks
	// to itself is asked about in neither: both are zero.
	Directions [directions]Course
}

// Course is the way to one direction's decision.
type Course struct {
	Decision Decision
	Subject  *Endpoint // nil when the address is no known pod's
	Policies []*Ref    // those that select Subject in this direction
	// Steps are the rules that were asked, in order. The last one decided, if
	// any did; those behind it were not asked.
	Steps []Step
}

// Step is one rule that was asked.
type Step struct {
	Rule *Rule
	// Passed tells that a rule before it has left the tier.
	Passed  bool
	Matched bool
	// Peers and Ports say of each item of the rule's lists whether it matched,
	// and why not.
	Peers, Ports []Match
}

// Match is whether an item of a rule matches a packet, and else why not.
type Match uint8

const (
	Unreadable           Match = iota // the item could not be compiled: it matches nothing
	Matched                           // the item matches
	PeerNoPod                         // the item selects pods, the peer is none
	PeerOtherNamespace                // the peer is not in the one namespace of the item
	PeerNamespaceUnknown              // the Namespace object of the peer is not known
	PeerNamespaceLabels               // the labels of the peer's namespace differ
	PeerLabels                        // the labels of the peer differ
	PeerOutside                       // the peer's address is not in the block
	PeerExcepted                      // the peer's address is in a hole of the block
	OtherProtocol                     // the item is for another protocol
	OtherPort                         // the port is not in the item's range
	PortNoPod                         // the port has a name and the destination is no pod
	PortNotDeclared                   // the destination declares no port of that name and protocol
	PortDeclaredOther                 // the destination declares the name for another number
)

// Explain answers like Evaluate and tells how the answer came about. It asks
// the same chains with the same matching; it is for people and takes its time.
func (s *Snapshot) Explain(p packet.Packet) Explanation {
	e := Explanation{Decision: s.Evaluate(p)}
	srcAddr, dstAddr := p.Src.Addr(), p.Dst.Addr()
	src, dst := s.m.Endpoints[srcAddr], s.m.Endpoints[dstAddr]
	if src != nil && src == dst {
		return e
	}
	f := flow{dst: dst, proto: p.Proto, dstPort: p.Dst.Port()}
	out, in := f, f
	out.peer, out.peerAddr = dst, dstAddr
	in.peer, in.peerAddr = src, srcAddr
	e.Directions[Egress] = course(src, Egress, &out)
	e.Directions[Egress].Decision = s.judge(Egress, src, srcAddr, out)
	e.Directions[Ingress] = course(dst, Ingress, &in)
	e.Directions[Ingress].Decision = s.judge(Ingress, dst, dstAddr, in)
	return e
}

func course(subject *Endpoint, d Direction, f *flow) Course {
	c := Course{Subject: subject}
	if subject == nil || subject.chain(d) == nil {
		return c
	}
	chain := subject.chain(d)
	c.Policies = chain.Policies
	decider := chain.decide(f)
	passed := DefaultTier
	for i := range chain.Rules {
		r := &chain.Rules[i]
		step := r.step(f)
		step.Passed = r.Tier == passed
		c.Steps = append(c.Steps, step)
		if r == decider {
			break
		}
		if step.Matched && !step.Passed && r.Verdict == Pass {
			passed = r.Tier
		}
	}
	return c
}

func (r *Rule) step(f *flow) Step {
	s := Step{Rule: r, Matched: r.matches(f)}
	if !r.AnyPeer {
		for i := range r.Peers {
			s.Peers = append(s.Peers, r.Peers[i].explain(f))
		}
	}
	if !r.AnyPort {
		for i := range r.Ports {
			s.Ports = append(s.Ports, r.Ports[i].explain(f))
		}
	}
	return s
}

// explain finds out why matches said no.
func (p *Peer) explain(f *flow) Match {
	switch {
	case p.matches(f):
		return Matched
	case p.Block != nil && p.Block.Prefix.Contains(f.peerAddr):
		return PeerExcepted
	case p.Block != nil:
		return PeerOutside
	case p.Pods == nil:
		return Unreadable
	case f.peer == nil:
		return PeerNoPod
	}
	return p.Pods.explain(f.peer)
}

// explain finds out why matches said no.
func (s *PodSelector) explain(e *Endpoint) Match {
	switch {
	case s.Namespace != "" && s.Namespace != e.Namespace:
		return PeerOtherNamespace
	case s.Namespace != "" || s.Namespaces.Empty():
		return PeerLabels
	case e.NamespaceLabels == nil:
		return PeerNamespaceUnknown
	case !s.Namespaces.Matches(e.NamespaceLabels):
		return PeerNamespaceLabels
	}
	return PeerLabels
}

// explain finds out why matches said no.
func (p *Port) explain(f *flow) Match {
	switch {
	case p.matches(f):
		return Matched
	case p.Name == "" && p.First > p.Last:
		return Unreadable
	case p.Proto != f.proto:
		return OtherProtocol
	case p.Name == "":
		return OtherPort
	case f.dst == nil:
		return PortNoPod
	}
	for _, n := range f.dst.Ports {
		if n.Name == p.Name && n.Proto == p.Proto {
			return PortDeclaredOther
		}
	}
	return PortNotDeclared
}
