package policy

// Explanation is a decision with the rules that were evaluated in each direction and their results.
type Explanation struct {
	Decision Decision
	// Directions are the two traces; Decision comes from one of them. With ToHost it comes from
	// Egress, and the trace of Ingress is empty.
	Directions [directions]Trace
}

// Trace is how one direction's decision was made.
type Trace struct {
	Decision Decision
	Subject  *Endpoint // nil when the address is no known pod's
	Peer     *Endpoint // as Subject; with Decision.Disputed the pod for which it was made
	Policies []*Ref    // those that select Subject in this direction
	// Steps are the evaluated rules in order. If a rule decided, it is the last one.
	Steps []Step
	// Later holds what each tier after the deciding one would have decided on its own: Pass where
	// it would have left the packet to the next tier.
	Later []Decision
}

// Step is one rule that was evaluated.
type Step struct {
	Rule *Rule
	// Passed reports whether an earlier rule passed the whole tier.
	Passed  bool
	Matched bool
	// Peers and Ports hold a result for each item of the rule's lists.
	Peers, Ports []Match
}

// Match is whether an item of a rule matches a packet and, if not, why.
type Match uint8

const (
	Unreadable           Match = iota // the item could not be compiled: it matches nothing
	Matched                           // the item matches
	PeerNoPod                         // the item selects pods, the peer is none
	PeerOtherNamespace                // the peer is not in the one namespace of the item
	PeerNamespaceUnknown              // the Namespace object of the peer is not known
	PeerNamespaceLabels               // the labels of the peer's namespace differ
	PeerLabels                        // the labels of the peer differ
	PeerOtherAccount                  // the service account of the peer is not one of the item
	PeerNotInBlock                    // the peer's address is not in the block
	PeerExcepted                      // the peer's address is in a hole of the block
	PeerNoNode                        // the peer's address is no node's
	PeerNodeLabels                    // the labels of the peer's node differ
	PeerNotLearned                    // the subject has learned none of the names for the peer's address
	PeerOutOfScope                    // domain names never match the peer's address (see scope)
	OtherProtocol                     // the item is for another protocol
	OtherPort                         // the port is not in the item's range
	PortNoPod                         // the port has a name and the destination is no pod
	PortNotDeclared                   // the destination declares no port of that name and protocol
	PortDeclaredOther                 // the destination declares the name for another number
	PortHidden                        // the packet's ports cannot be read, and the rule allows or the item has none
)

// Explain decides as Evaluate does and reports how. It evaluates rule by rule: too slow for the
// packet path.
func (s *Snapshot) Explain(q Query) Explanation {
	e := Explanation{Decision: s.Evaluate(q)}
	var src, dst end
	s.ends(&q, &src, &dst)
	e.Directions[Egress] = s.trace(Egress, &q, &src, &dst)
	if !q.ToHost {
		e.Directions[Ingress] = s.trace(Ingress, &q, &src, &dst)
	}
	return e
}

func (s *Snapshot) trace(d Direction, q *Query, src, dst *end) Trace {
	subject, peer := d.subject(src, dst), *d.peer(src, dst)
	c := Trace{Decision: s.evaluate(d, q, src, dst), Subject: subject.endpoint}
	if c.Decision.Disputed {
		_, peer = s.evaluateDisputed(d, q, src, dst)
	}
	c.Peer = peer.endpoint
	if subject.endpoint == nil || subject.endpoint.chain(d) == nil {
		return c
	}
	chain := subject.endpoint.chain(d)
	c.Policies = chain.Policies
	if c.Decision.Reason == UnknownPod && c.Decision.Tier == DefaultTier {
		return c // the decision depends on the unknown peer
	}
	src, dst = subject, &peer
	if d == Ingress {
		src, dst = dst, src
	}
	var f flow
	s.fill(&f, d, q, src, dst)
	f.scope = s.scopeOf(f.peerAddr, q.ToHost) // also without names
	exempt := q.exempt(src, dst)
	c.Steps = chain.steps(&f, exempt)
	c.Later = chain.later(d, &f, exempt, c.Decision.Tier)
	return c
}

// steps evaluates the rules up to the deciding one. For an exempt flow it stops before the
// NetworkPolicy tier.
func (c *Chain) steps(f *flow, exempt Reason) []Step {
	var steps []Step
	decider := c.scan(f)
	var p progress
	for i := range c.Rules {
		r := &c.Rules[i]
		if exempt != NotSelected && r.Tier == NetworkPolicyTier {
			break
		}
		step := r.step(f)
		step.Passed = !p.reaches(r)
		steps = append(steps, step)
		if r == decider {
			break
		}
		if step.Matched && !step.Passed {
			p.decides(r, f)
		}
	}
	return steps
}

// later evaluates the tiers after the one that decided, each on its own.
func (c *Chain) later(d Direction, f *flow, exempt Reason, decided Tier) []Decision {
	var decisions []Decision
	var p progress
	for i := range c.Rules {
		r := &c.Rules[i]
		if decided == DefaultTier || r.Tier <= decided {
			continue
		}
		if n := len(decisions); n == 0 || decisions[n-1].Tier != r.Tier {
			decisions = append(decisions, Decision{Action: Pass, Direction: d, Tier: r.Tier, Reason: Unmatched})
		}
		last := &decisions[len(decisions)-1]
		switch {
		case exempt != NotSelected && r.Tier == NetworkPolicyTier:
			*last = Decision{Action: Allow, Direction: d, Tier: r.Tier, Reason: exempt}
		case !p.reaches(r) || !r.matches(f):
		case p.decides(r, f):
			*last = r.decision(d)
			p.passed = r.Tier
		case last.Reason == Unmatched:
			*last = r.decision(d)
		}
	}
	return decisions
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
			s.Ports = append(s.Ports, r.explainPort(&r.Ports[i], f))
		}
	}
	return s
}

// explainPort explains an item of Ports.
func (r *Rule) explainPort(p *Port, f *flow) Match {
	switch {
	case !f.proto.Hidden() || p.Name == "" && p.First > p.Last:
		return p.explain(f)
	case r.Action != Allow && p.existsOn(f.dst):
		return Matched
	}
	return PortHidden
}

// explain returns why matches returned false.
func (p *Peer) explain(f *flow) Match {
	switch {
	case p.matches(f):
		return Matched
	case p.Blocks != nil:
		return p.explainBlocks(f)
	case p.Nodes != nil && f.host == nil:
		return PeerNoNode
	case p.Nodes != nil:
		return PeerNodeLabels
	case p.Domains != nil && !f.scope.mayHave(p.Domains):
		return PeerOutOfScope
	case p.Domains != nil:
		return PeerNotLearned
	case p.Pods == nil:
		return Unreadable
	case f.peer == nil:
		return PeerNoPod
	}
	return p.Pods.explain(f.peer)
}

func (p *Peer) explainBlocks(f *flow) Match {
	for _, b := range p.Blocks {
		if b.Prefix.Contains(f.peerAddr) {
			return PeerExcepted
		}
	}
	return PeerNotInBlock
}

// explain returns why matches returned false.
func (s *PodSelector) explain(e *Endpoint) Match {
	switch {
	case s.Namespace != "" && s.Namespace != e.Namespace:
		return PeerOtherNamespace
	case s.Namespace == "" && !s.Namespaces.Empty() && !e.NamespaceLabels.Known():
		return PeerNamespaceUnknown
	case s.Namespace == "" && !s.Namespaces.Matches(e.NamespaceLabels):
		return PeerNamespaceLabels
	case !s.Pods.Matches(e.Labels):
		return PeerLabels
	}
	return PeerOtherAccount
}

// explain returns why matches returned false.
func (p *Port) explain(f *flow) Match {
	switch {
	case p.matches(f):
		return Matched
	case p.Name == "" && p.First > p.Last:
		return Unreadable
	case !p.isFor(f.proto) || !f.proto.HasPorts():
		return OtherProtocol
	case p.Name == "":
		return OtherPort
	case f.dst == nil:
		return PortNoPod
	}
	for _, n := range f.dst.Ports {
		if n.Name == p.Name && n.Proto == f.proto {
			return PortDeclaredOther
		}
	}
	return PortNotDeclared
}
