package reachability

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// flow is a connection as seen by one direction.
type flow struct {
	direction     policy.Direction
	packet        packet.Packet
	src, dst      *Endpoint
	subject, peer *Endpoint        // src and dst, or dst and src
	pod           *policy.Endpoint // that the peer is taken for
	disputed      bool             // because it may be others, too
}

func (f *flow) subjectAddr() netip.Addr {
	if f.direction == policy.Egress {
		return f.packet.Src.Addr()
	}
	return f.packet.Dst.Addr()
}

func (f *flow) peerAddr() netip.Addr {
	if f.direction == policy.Egress {
		return f.packet.Dst.Addr()
	}
	return f.packet.Src.Addr()
}

// peerText is the address of the peer, or where it may be.
func (f *flow) peerText() string { return addressText(f.peer, f.peerAddr()) }

func addressText(e *Endpoint, a netip.Addr) string {
	if e.placeholder.IsValid() {
		return "an address of " + e.place
	}
	return a.String()
}

// field returns the path of a rule.
func field(d policy.Direction, rule int) string { return fmt.Sprintf("spec.%v[%d]", d, rule) }

// itemField returns the path of a place in a rule's peers or ports.
func itemField(kind string, p policy.Place) string {
	list := compile.PeersField(p.Direction)
	if p.Part == policy.PortsPart {
		list = compile.KindNamed(kind).PortsField
	}
	path := field(p.Direction, p.Rule) + "." + list
	if p.Item == policy.AllItems {
		return path
	}
	return fmt.Sprintf("%s[%d]", path, p.Item)
}

// trace explains one direction.
func (c *Cluster) trace(trace policy.Trace, f flow) Trace {
	f.pod, f.disputed = trace.Peer, trace.Decision.Disputed
	out := Trace{
		Direction: f.direction.String(),
		Subject:   f.subject.Name,
		Address:   addressText(f.subject, f.subjectAddr()),
		Node:      f.subject.Node,
		Allowed:   trace.Decision.Allowed(),
		Reason:    c.reason(trace, &f),
	}
	if f.disputed {
		out.Reason += ", " + c.asFor(&f)
	}
	for _, ref := range trace.Policies {
		out.Policies = append(out.Policies, ref.String())
	}
	for _, found := range c.snapshot.Findings() {
		if concerns(found, trace, f.direction) {
			out.Findings = append(out.Findings, NewFinding(found))
		}
	}
	out.Tiers = c.tiers(trace, &f)
	return out
}

// asFor says what a peer in dispute is taken for: whatever it may be for which the packet is denied.
func (c *Cluster) asFor(f *flow) string {
	if f.pod == nil {
		return fmt.Sprintf("as for %v without a pod", f.peerAddr())
	}
	return fmt.Sprintf("as for pod %v, which may have %v", f.pod, f.peerAddr())
}

// reason explains the decision of a direction.
func (c *Cluster) reason(trace policy.Trace, f *flow) string {
	switch {
	case trace.Decision.Reason == policy.UnknownPod:
		return c.unknownPod(trace, f)
	case trace.Decision.Reason != policy.NotSelected:
		return decisionReason(trace.Decision)
	case f.subject.onHost():
		return "a node is not a pod: no policy applies to it"
	case trace.Subject == nil:
		return "it is not a pod: no policy applies to it"
	}
	return fmt.Sprintf("no policy selects the pod for %v", f.direction)
}

// decisionReason explains a decision about a selected pod.
func decisionReason(d policy.Decision) string {
	switch d.Reason {
	case policy.RuleMatched:
		return fmt.Sprintf("%s %s matches", d.Policy, field(d.Direction, d.Rule))
	case policy.Isolated:
		return "NetworkPolicies isolate the pod and none of their rules matches"
	case policy.OwnNode:
		return "NetworkPolicy lets every pod reach its own node"
	}
	return "no rule of the policies that select the pod allows or denies it, and none isolates the pod"
}

// unknownPod returns which endpoint is the unknown pod.
func (c *Cluster) unknownPod(trace policy.Trace, f *flow) string {
	unknown := f.subjectAddr()
	if trace.Subject != nil {
		unknown = f.peerAddr()
	}
	return fmt.Sprintf("%v is in a node's range of pod addresses and no known pod has it: it is treated as a new pod that is not known yet, and nothing is allowed for it (traffic of the node itself passes)", unknown)
}

// concerns reports whether a finding affects a direction of a subject: its policy selects
// the subject, or would if its selector and types could be read.
func concerns(found policy.Finding, trace policy.Trace, d policy.Direction) bool {
	if trace.Subject == nil {
		return false
	}
	ofRule := found.Place.Part != policy.WholePart
	if ofRule && found.Place.Direction != d {
		return false
	}
	for _, ref := range trace.Policies {
		if *ref == found.Policy {
			return true
		}
	}
	return !ofRule && (found.Policy.Namespace == "" || found.Policy.Namespace == trace.Subject.Namespace)
}

// tiers groups the evaluated rules by tier, with the outcome of each, and adds the tiers
// that were not evaluated, with the outcome that they would have had. Isolation is shown as
// an outcome, although the evaluator treats it as a rule.
func (c *Cluster) tiers(trace policy.Trace, f *flow) []Tier {
	var tiers []Tier
	ask := func(tier policy.Tier, outcome string) {
		if n := len(tiers); n > 0 {
			tiers[n-1].Outcome += ": the next tier is evaluated"
		}
		tiers = append(tiers, Tier{Name: tier.String(), Outcome: outcome})
	}
	for i := range trace.Steps {
		s := &trace.Steps[i]
		if i == 0 || s.Rule.Tier != trace.Steps[i-1].Rule.Tier {
			ask(s.Rule.Tier, "no rule matches")
		}
		tier := &tiers[len(tiers)-1]
		if s.Rule.Index != policy.Isolation {
			tier.Rules = append(tier.Rules, c.rule(s, f))
		}
		if s.Matched && !s.Passed {
			tier.Outcome = outcome(s.Rule)
		}
	}
	switch {
	case trace.Decision.Reason == policy.OwnNode:
		ask(trace.Decision.Tier, decisionReason(trace.Decision)+": allow, which is final")
	case trace.Decision.Reason == policy.Unmatched && len(tiers) > 0:
		tiers[len(tiers)-1].Outcome += ", and no tier is left: allow"
	}
	for _, d := range trace.Later {
		tiers = append(tiers, Tier{Name: d.Tier.String(), NotEvaluated: true, Outcome: wouldHaveBeen(d)})
	}
	return tiers
}

// outcome returns the effect of a matching rule on its tier.
func outcome(r *policy.Rule) string {
	switch {
	case r.Index == policy.Isolation:
		return "no rule matches, and the pod is isolated: deny, which is final"
	case r.Action == policy.Pass:
		return "pass"
	}
	return r.Action.String() + ", which is final"
}

// wouldHaveBeen returns the outcome that a skipped tier would have had.
func wouldHaveBeen(d policy.Decision) string {
	if d.Reason == policy.Unmatched {
		return "not evaluated; no rule of it would match"
	}
	return fmt.Sprintf("not evaluated; would %v: %s", d.Action, decisionReason(d))
}

func (c *Cluster) rule(s *policy.Step, f *flow) Rule {
	r := Rule{Policy: s.Rule.Policy.String(), Field: field(f.direction, s.Rule.Index), Action: s.Rule.Action.String(), Matches: s.Matched, Skipped: s.Passed}
	place := policy.Place{Part: policy.PeersPart, Direction: f.direction, Rule: s.Rule.Index, Item: policy.AllItems}
	if s.Rule.AnyPeer {
		r.Peers = []Item{c.everything("any peer", s.Rule, place)}
	}
	for i, m := range s.Peers {
		place.Item = i
		item := c.item(peerMeans(&s.Rule.Peers[i]), m, f, s.Rule, place)
		if m == policy.Unreadable && item.Why == "" {
			continue // from the rule's other half
		}
		r.Peers = append(r.Peers, item)
	}
	place.Part, place.Item = policy.PortsPart, policy.AllItems
	if s.Rule.AnyPort {
		r.Ports = []Item{c.everything("any protocol and port", s.Rule, place)}
	}
	for i, m := range s.Ports {
		place.Item = i
		item := c.item(portMeans(&s.Rule.Ports[i]), m, f, s.Rule, place)
		if m == policy.Unreadable && item.Why == "" {
			item.Means, item.Why = "a named port", "peers that are not pods declare none"
		}
		r.Ports = append(r.Ports, item)
	}
	return r
}

// item describes the item at a place of a rule, and whether it matches.
func (c *Cluster) item(means string, m policy.Match, f *flow, r *policy.Rule, place policy.Place) Item {
	return Item{Field: itemField(r.Policy.Kind, place), Means: means, Matches: m == policy.Matched, Why: c.whyNot(m, f, r, place)}
}

// everything describes the list at a place of a rule that matches everything.
func (c *Cluster) everything(means string, r *policy.Rule, place policy.Place) Item {
	return Item{Field: itemField(r.Policy.Kind, place), Means: c.anyMeans(means, r, place), Matches: true}
}
