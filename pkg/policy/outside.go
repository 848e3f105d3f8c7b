package policy

import "net/netip"

// maxItems is how many blocks and domains of a rule Outside looks at. It is for records, not
// for verdicts: a rule may have thousands.
const maxItems = 1000

// Outside is the item of a rule by which a peer matched that is no pod: one of the fields is
// set, or none.
type Outside struct {
	Block  netip.Prefix
	Domain Domain
}

// Outside returns the block or the domain by which the rule that decided d has matched the
// peer of q: the first such item of the rule. It returns the zero Outside if the peer is a
// pod, if the rule has matched it as a node or as any peer, if d is not by a rule of s, or
// if the rule has more than a thousand items before it. It is for people, and not for the
// path of packets.
func (s *Snapshot) Outside(q Query, d Decision) Outside {
	if d.Reason != RuleMatched {
		return Outside{}
	}
	var src, dst end
	s.ends(&q.Packet, &src, &dst)
	subject, peer := d.Direction.subject(&src, &dst), d.Direction.peer(&src, &dst)
	if peer.endpoint != nil || subject.endpoint == nil || subject.endpoint.chain(d.Direction) == nil {
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

// sameRule reports whether d and o, by rules, are by the same one, of any generation.
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
			if left--; left < 0 {
				return Outside{}
			}
			if b := &p.Blocks[j]; b.contains(f.peerAddr) {
				return Outside{Block: b.Prefix}
			}
		}
		for j := range p.Domains {
			if left--; left < 0 {
				return Outside{}
			}
			if f.names != nil && f.names.matchAny(p.Domains[j:j+1], f.scope) {
				return Outside{Domain: p.Domains[j]}
			}
		}
	}
	return Outside{}
}
