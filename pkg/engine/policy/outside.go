package policy

import "net/netip"

// maxItems limits the blocks and domains of a rule that Outside looks at: a rule may have
// thousands, and the answer is only recorded.
const maxItems = 1000

// Outside is the item of a rule that matched a peer outside of the cluster. At most one field is
// set.
type Outside struct {
	Block  netip.Prefix
	Domain Domain
}

// Outside returns the first block or domain that matches the peer of q in the rule that decided d.
// It returns the zero Outside if the peer is a pod, if the rule matched it as a node or as any
// peer, if d does not come from a rule of s, or if more than a thousand items precede the match. It
// is too slow for the packet path.
func (s *Snapshot) Outside(q Query, d Decision) Outside {
	if d.Reason != RuleMatched {
		return Outside{}
	}
	var src, dst end
	s.ends(&q, &src, &dst)
	subject, peer := d.Direction.subject(&src, &dst), d.Direction.peer(&src, &dst)
	if peer.endpoint != nil || peer.dispute != nil || subject.endpoint == nil || subject.endpoint.chain(d.Direction) == nil {
		return Outside{}
	}
	var f flow
	s.fill(&f, d.Direction, &q, &src, &dst)
	x := subject.endpoint.chain(d.Direction).prepare()
	var m match
	if !x.match(&f, &m) {
		return Outside{}
	}
	rule := x.decide(&f, &m)
	if rule == nil || !rule.decision(d.Direction).sameRule(d) {
		return Outside{}
	}
	return rule.outside(&f)
}

// sameRule reports whether d and o come from the same rule, of any generation of its policy.
func (d Decision) sameRule(o Decision) bool {
	a, b := d.Policy, o.Policy
	return d.Reason == o.Reason && d.Rule == o.Rule && d.Tier == o.Tier && a.Kind == b.Kind && a.Namespace == b.Namespace && a.Name == b.Name
}

// outside returns the first block or domain of r that matches f.
func (r *Rule) outside(f *flow) Outside {
	if r.AnyPeer {
		return Outside{}
	}
	left := maxItems
	for i := range r.Peers {
		p := &r.Peers[i]
		if p.Nodes != nil && p.matches(f) {
			return Outside{}
		}
		for j := range p.blocks() {
			left--
			if left < 0 {
				return Outside{}
			}
			if b := &p.Blocks[j]; b.contains(f.peerAddr) {
				return Outside{Block: b.Prefix}
			}
		}
		for j := range p.Domains {
			left--
			if left < 0 {
				return Outside{}
			}
			if f.names != nil && f.names.matchAny(p.Domains[j:j+1], f.scope) {
				return Outside{Domain: p.Domains[j]}
			}
		}
	}
	return Outside{}
}
