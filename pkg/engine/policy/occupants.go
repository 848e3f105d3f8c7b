package policy

import "net/netip"

// end is the source or the destination of a packet.
type end struct {
	addr     netip.Addr
	pod      netip.Addr // the address of the pod: addr, or that of the pod behind the interface
	endpoint *Endpoint  // nil if pod is no known pod's
	who      occupants  // who may be at addr if endpoint is nil, for any subject: unlisted, or noPod
}

// occupants are the pods that may be at an address without a known pod. A packet waits if the
// decision is not the same for all of them. The zero value is no pod.
type occupants uint8

const noPod occupants = 0

const (
	newHere      occupants = 1 << iota // any pod of this node (NP-55)
	newElsewhere                       // any pod of another node, as destination (CN-35)
	unlisted                           // any pod that is not listed here, or no pod
	newcomers                          // one of Unknown.Newcomers, or no pod (NP-61)
)

// possibleOccupants returns who may be at the address of the peer, which has no known pod.
func (s *Snapshot) possibleOccupants(d Direction, q *Query, subject, peer *end) (who occupants) {
	who = peer.who
	if s.m.Isolating[d] && s.shareRange(subject.pod, peer.addr) {
		who |= newHere
	}
	if subject.endpoint.Unlisted[d] {
		who |= unlisted
	}
	switch {
	case d == Egress && s.m.Isolating[d] && s.m.PodRanges.contain(peer.addr):
		// In ingress this does not apply: the source may be the node itself, by an address that no
		// API object shows, and that node holds the packets of its unknown pods.
		who |= newElsewhere
	case d == Ingress && q.AwaitSource && s.mayBeNewcomer(q, peer.addr):
		who |= newcomers
	}
	return who
}

// mayBeNewcomer reports whether a may get assigned to a pod of another node that has no address
// yet.
func (s *Snapshot) mayBeNewcomer(q *Query, a netip.Addr) bool {
	return (len(s.m.Newcomers) > 0 || q.anyNewcomer) && (!s.m.PodRanges.any() || s.m.PodRanges.contain(a))
}

// shareRange reports whether two addresses are in one range of this node's pods.
func (s *Snapshot) shareRange(a, b netip.Addr) bool {
	for _, r := range s.m.Ranges {
		if r.Contains(a) && r.Contains(b) {
			return true
		}
	}
	return false
}

// depends reports whether the decision about f may differ between no pod at the peer's address,
// where rule decides, and one of who.
func (s *Snapshot) depends(who occupants, q *Query, x *index, rule *Rule, f *flow, m *match) bool {
	anyPod := who != newcomers || len(s.m.Newcomers) > MaxNewcomers || q.anyNewcomer
	return x.depends(who, rule, f, m) && (anyPod || s.newcomersDiffer(x, rule, f))
}

// newcomersDiffer reports whether x decides differently from rule if one of Newcomers is the peer
// of f.
func (s *Snapshot) newcomersDiffer(x *index, rule *Rule, f *flow) bool {
	for _, e := range s.m.Newcomers {
		withPeer, matched := *f, match{}
		withPeer.peer = e
		if e.Doubtful || !x.match(&withPeer, &matched) || x.decide(&withPeer, &matched).denies() != rule.denies() {
			return true
		}
	}
	return false
}

// undecided is the decision about a packet that waits until it is known which of who is there. r
// decides if there is no pod.
func (r *Rule) undecided(d Direction, who occupants) Decision {
	u := Decision{Action: Deny, Direction: d, Reason: UnknownPod}
	if who == newcomers {
		u.Reason = UnknownSource
	}
	if r.denies() {
		u.Tier, u.Policy = r.Tier, r.Policy
	}
	return u
}

// mayBeElsewhere reports whether a pod of another node is, or may be, at dst, to which src sends.
func (s *Snapshot) mayBeElsewhere(src *Endpoint, dst *end) bool {
	if dst.endpoint != nil && !s.IsLocal(dst.pod) || src.Unlisted[Egress] {
		return true
	}
	return dst.endpoint == nil && (dst.who != noPod || s.m.PodRanges.contain(dst.addr))
}
