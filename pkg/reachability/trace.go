package reachability

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// flow is a connection as one direction sees it.
type flow struct {
	direction     policy.Direction
	packet        packet.Packet
	src, dst      *Endpoint
	subject, peer *Endpoint // src and dst, or the other way round
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

// field is the path of a rule.
func field(d policy.Direction, rule int) string { return fmt.Sprintf("spec.%v[%d]", d, rule) }

// itemField is the path of a place in the peers or ports of a rule of a kind.
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
func (c *Cluster) trace(way policy.Trace, f flow) Trace {
	out := Trace{
		Direction: f.direction.String(),
		Subject:   f.subject.Name,
		Address:   f.subjectAddr().String(),
		Node:      f.subject.Node,
		Allowed:   way.Decision.Allowed(),
		Reason:    c.reason(way, &f),
	}
	for _, ref := range way.Policies {
		out.Policies = append(out.Policies, ref.String())
	}
	for _, found := range c.snapshot.Findings() {
		if concerns(found, way, f.direction) {
			out.Findings = append(out.Findings, NewFinding(found))
		}
	}
	out.Tiers = c.tiers(way, &f)
	return out
}

// reason returns why the direction decided as it did.
func (c *Cluster) reason(way policy.Trace, f *flow) string {
	switch {
	case way.Decision.Reason == policy.UnknownPod:
		return c.unknownPod(way, f)
	case way.Decision.Reason != policy.NotSelected:
		return because(way.Decision)
	case f.subject.onHost():
		return "a node is not a pod: no policy applies to it"
	case way.Subject == nil:
		return "it is not a pod: no policy applies to it"
	}
	return fmt.Sprintf("no policy selects the pod for %v", f.direction)
}

// because returns what a decision about a selected pod rests on.
func because(d policy.Decision) string {
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

// unknownPod reports which endpoint is the unknown pod.
func (c *Cluster) unknownPod(way policy.Trace, f *flow) string {
	unknown := f.subjectAddr()
	if way.Subject != nil {
		unknown = f.peerAddr()
	}
	return fmt.Sprintf("%v is in a node's range of pod addresses and no known pod has it: it is treated as a new pod that is not known yet, and nothing is allowed for it (traffic of the node itself passes)", unknown)
}

// concerns reports whether a finding is about a direction of a subject: it is
// of a policy that selects the subject, or of one that does not because its
// selector or its types could not be read.
func concerns(found policy.Finding, way policy.Trace, d policy.Direction) bool {
	if way.Subject == nil {
		return false
	}
	ofRule := found.Place.Part != policy.WholePart
	if ofRule && found.Place.Direction != d {
		return false
	}
	for _, ref := range way.Policies {
		if *ref == found.Policy {
			return true
		}
	}
	return !ofRule && (found.Policy.Namespace == "" || found.Policy.Namespace == way.Subject.Namespace)
}

// tiers groups the rules that were evaluated by their tiers, with the outcome of each,
// and adds the tiers that were not evaluated, with what would have been theirs. Isolation is
// an outcome, though the evaluator has it as a rule.
func (c *Cluster) tiers(way policy.Trace, f *flow) []Tier {
	var tiers []Tier
	ask := func(tier policy.Tier, outcome string) {
		if n := len(tiers); n > 0 {
			tiers[n-1].Outcome += ": the next tier is evaluated"
		}
		tiers = append(tiers, Tier{Name: tier.String(), Outcome: outcome})
	}
	for i := range way.Steps {
		s := &way.Steps[i]
		if i == 0 || s.Rule.Tier != way.Steps[i-1].Rule.Tier {
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
	case way.Decision.Reason == policy.OwnNode:
		ask(way.Decision.Tier, because(way.Decision)+": allow, which is final")
	case way.Decision.Reason == policy.Unmatched && len(tiers) > 0:
		tiers[len(tiers)-1].Outcome += ", and no tier is left: allow"
	}
	for _, d := range way.Later {
		tiers = append(tiers, Tier{Name: d.Tier.String(), NotEvaluated: true, Outcome: wouldHaveBeen(d)})
	}
	return tiers
}

// outcome returns what follows for a tier from the rule that matches.
func outcome(r *policy.Rule) string {
	switch {
	case r.Index == policy.Isolation:
		return "no rule matches, and the pod is isolated: deny, which is final"
	case r.Action == policy.Pass:
		return "pass"
	}
	return r.Action.String() + ", which is final"
}

// wouldHaveBeen returns the outcome of a tier that was not evaluated.
func wouldHaveBeen(d policy.Decision) string {
	if d.Reason == policy.Unmatched {
		return "not evaluated; no rule of it would match"
	}
	return fmt.Sprintf("not evaluated; would %v: %s", d.Action, because(d))
}

func (c *Cluster) rule(s *policy.Step, f *flow) Rule {
	r := Rule{Policy: s.Rule.Policy.String(), Field: field(f.direction, s.Rule.Index), Action: s.Rule.Action.String(), Matches: s.Matched, Skipped: s.Passed}
	at := policy.Place{Part: policy.PeersPart, Direction: f.direction, Rule: s.Rule.Index, Item: policy.AllItems}
	if s.Rule.AnyPeer {
		r.Peers = []Item{c.everything("any peer", s.Rule, at)}
	}
	for i, m := range s.Peers {
		at.Item = i
		item := c.item(peerMeans(&s.Rule.Peers[i]), m, f, s.Rule, at)
		if m == policy.Unreadable && item.Why == "" {
			continue // of the rule's other half
		}
		r.Peers = append(r.Peers, item)
	}
	at.Part, at.Item = policy.PortsPart, policy.AllItems
	if s.Rule.AnyPort {
		r.Ports = []Item{c.everything("any protocol and port", s.Rule, at)}
	}
	for i, m := range s.Ports {
		at.Item = i
		item := c.item(portMeans(&s.Rule.Ports[i]), m, f, s.Rule, at)
		if m == policy.Unreadable && item.Why == "" {
			item.Means, item.Why = "a named port", "peers that are not pods declare none"
		}
		r.Ports = append(r.Ports, item)
	}
	return r
}

// item is the item at a place of a rule, and whether it matches.
func (c *Cluster) item(means string, m policy.Match, f *flow, r *policy.Rule, at policy.Place) Item {
	return Item{Field: itemField(r.Policy.Kind, at), Means: means, Matches: m == policy.Matched, Why: c.whyNot(m, f, r, at)}
}

// everything is the list at a place of a rule, which matches everything.
func (c *Cluster) everything(means string, r *policy.Rule, at policy.Place) Item {
	return Item{Field: itemField(r.Policy.Kind, at), Means: c.anyMeans(means, r, at), Matches: true}
}
