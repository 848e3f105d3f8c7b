package reachability

import (
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// flow is a connection as one direction sees it.
type flow struct {
	direction     policy.Direction
	packet        packet.Packet
	src, dst      *Side
	subject, peer *Side // src and dst, or the other way round
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

// field is the path of a rule, and list that of its peers.
func (f *flow) field(rule int) string { return fmt.Sprintf("spec.%v[%d]", f.direction, rule) }

func (f *flow) list() string {
	if f.direction == policy.Egress {
		return "to"
	}
	return "from"
}

// course tells one direction.
func (c *Cluster) course(way policy.Course, f flow) Course {
	out := Course{
		Direction: f.direction.String(),
		Subject:   f.subject.Name,
		Address:   f.subjectAddr().String(),
		Node:      f.subject.Node,
		Allowed:   way.Decision.Verdict == policy.Allow,
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

// reason tells why the direction decided as it did.
func (c *Cluster) reason(way policy.Course, f *flow) string {
	d := way.Decision
	switch d.Reason {
	case policy.RuleMatched:
		return fmt.Sprintf("%s %s matches", d.Policy, f.field(d.Rule))
	case policy.Isolated:
		return "policies select the pod and none of their rules matches"
	case policy.Unmatched:
		return "no rule of the policies that select the pod matches, and none isolates it"
	case policy.UnknownPod:
		return c.unknownPod(way, f)
	}
	switch {
	case f.subject.onHost():
		return "a node is no pod: no policy applies to it"
	case way.Subject == nil:
		return "it is no pod: no policy applies to it"
	}
	return fmt.Sprintf("no policy selects the pod for %v", f.direction)
}

// unknownPod tells which side is the pod that nobody knows.
func (c *Cluster) unknownPod(way policy.Course, f *flow) string {
	unknown := f.subjectAddr()
	if way.Subject != nil {
		unknown = f.peerAddr()
	}
	return fmt.Sprintf("%v is in a node's range of pod addresses and no known pod has it: it is taken for a pod too new to be known, and nothing is allowed for it (traffic of the node itself passes)", unknown)
}

// concerns tells whether a finding has to do with a direction of a subject: it is
// of a policy that selects the subject, or of one that does not because its
// selector or its types could not be read.
func concerns(found policy.Finding, way policy.Course, d policy.Direction) bool {
	if way.Subject == nil {
		return false
	}
	other := policy.Ingress
	if d == policy.Ingress {
		other = policy.Egress
	}
	if strings.HasPrefix(found.Field, "spec."+other.String()) {
		return false
	}
	for _, ref := range way.Policies {
		if *ref == found.Policy {
			return true
		}
	}
	ofRule := strings.HasPrefix(found.Field, "spec."+d.String())
	return !ofRule && (found.Policy.Namespace == "" || found.Policy.Namespace == way.Subject.Namespace)
}

// tiers groups the rules that were asked by their tiers, and tells how each one
// ended. Isolation is an outcome, though the evaluator has it as a rule.
func (c *Cluster) tiers(way policy.Course, f *flow) []Tier {
	var tiers []Tier
	last := policy.DefaultTier
	for i := range way.Steps {
		s := &way.Steps[i]
		if s.Rule.Tier != last {
			last = s.Rule.Tier
			tiers = append(tiers, Tier{Name: last.String(), Outcome: "no rule matches: the next tier is asked"})
		}
		tier := &tiers[len(tiers)-1]
		if s.Rule.Index == policy.Isolation {
			if s.Matched && !s.Passed {
				tier.Outcome = "no rule matches, and the pod is isolated: deny"
			}
			continue
		}
		tier.Rules = append(tier.Rules, c.rule(s, f))
		switch {
		case !s.Matched || s.Passed:
		case s.Rule.Verdict == policy.Pass:
			tier.Outcome = "pass: the next tier is asked"
		default:
			tier.Outcome = s.Rule.Verdict.String() + ": what comes after is not asked"
		}
	}
	return tiers
}

func (c *Cluster) rule(s *policy.Step, f *flow) Rule {
	r := Rule{Policy: s.Rule.Policy, Field: f.field(s.Rule.Index), Action: s.Rule.Verdict.String(), Matches: s.Matched, Skipped: s.Passed}
	peers, ports := r.Field+"."+f.list(), r.Field+".ports"
	if s.Rule.AnyPeer {
		r.Peers = []Item{{Field: peers, Means: "anybody: the list is empty", Matches: true}}
	}
	for i, m := range s.Peers {
		item := Item{Field: fmt.Sprintf("%s[%d]", peers, i), Means: peerMeans(&s.Rule.Peers[i]), Matches: m == policy.Matched}
		item.Why = c.whyNot(m, f, s.Rule, item.Field)
		r.Peers = append(r.Peers, item)
	}
	if s.Rule.AnyPort {
		r.Ports = []Item{{Field: ports, Means: "any protocol and port: the list is empty", Matches: true}}
	}
	for i, m := range s.Ports {
		item := Item{Field: fmt.Sprintf("%s[%d]", ports, i), Means: portMeans(&s.Rule.Ports[i]), Matches: m == policy.Matched}
		item.Why = c.whyNot(m, f, s.Rule, item.Field)
		r.Ports = append(r.Ports, item)
	}
	return r
}
