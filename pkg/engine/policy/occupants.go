package policy

import (
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// end is the source or the destination of a packet.
type end struct {
	addr     netip.Addr
	pod      netip.Addr // the address of the pod: addr, or that of the pod behind the interface
	endpoint *Endpoint  // nil if pod is no known pod's
	who      occupants  // who may be at addr if endpoint is nil, for any subject: newHere, or noPod
	dispute  *Dispute   // set if it is not certain which pod is at addr; endpoint is nil then
	here     bool       // with dispute, a new pod of this node may be at addr
	noHost   bool       // addr counts as no node's
}

// findDisputed fills in e for an address in dispute.
func (s *Snapshot) findDisputed(e *end, d *Dispute, routes Routes) {
	e.here = d.Here && (routes == nil || !routes.LeadsAway(e.addr, s.m.Ranges, s.m.Local.all))
	if !e.here && !d.NoPod && !d.NoHost && len(d.Pods) == 1 {
		e.endpoint = d.Pods[0]
		return
	}
	e.dispute = d
}

// isElsewhere reports whether only pods of other nodes, or a Node, may be at e.
func (e *end) isElsewhere() bool { return e.dispute != nil && !e.here }

// evaluateDisputed decides as for each pod that the peer may be, or none. The first denial counts,
// or else the first decision that waits. decided is the peer of that decision.
func (s *Snapshot) evaluateDisputed(d Direction, q *Query, src, dst *end) (worst Decision, decided end) {
	peer := *d.peer(src, dst)
	from, to := src, &peer
	if d == Ingress {
		from, to = &peer, dst
	}
	dispute, first := peer.dispute, true
	peer.dispute = nil
	for _, noHost := range [...]bool{false, true} {
		if noHost && !dispute.NoHost {
			break
		}
		for i := range len(dispute.Pods) + 1 {
			peer.noHost = noHost || i < len(dispute.Pods) // a Node's claim gives a pod no right
			if !s.occupy(&peer, dispute, i, d) {
				continue
			}
			if o := s.evaluateOne(d, q, from, to); first || worst.severity() < o.severity() {
				worst, decided, first = o, peer, false
			}
		}
	}
	worst.Disputed = true
	return worst, decided
}

// occupy puts pod i of the dispute at e, or no known pod after the last one. It returns false if that
// is not possible.
func (s *Snapshot) occupy(e *end, dispute *Dispute, i int, d Direction) bool {
	e.who = noPod
	if i < len(dispute.Pods) {
		e.endpoint = dispute.Pods[i]
		return true
	}
	e.endpoint = nil
	if e.here && s.m.Isolating[d] {
		e.who = newHere
	}
	return e.here || dispute.NoPod || len(dispute.Pods) == 0
}

// severity orders decisions: allowed, waiting, denied.
func (d *Decision) severity() int {
	switch {
	case d.Action == Allow:
		return 0
	case d.Wait() != NoWait:
		return 1
	}
	return 2
}

// dependsOnRoutes reports whether routes of the node decide who has an address of p.
func (s *Snapshot) dependsOnRoutes(p *packet.Packet) bool {
	return s.mayBeHere(p.Src.Addr()) || s.mayBeHere(p.Dst.Addr())
}

func (s *Snapshot) mayBeHere(a netip.Addr) bool {
	e := s.m.Endpoints.At(a)
	return e != nil && e.Dispute != nil && e.Dispute.Here
}

// occupants are the pods that may be at an address without a known pod. A packet waits if the
// decision is not the same for all of them. The zero value is no pod.
type occupants uint8

const noPod occupants = 0

const (
	newHere      occupants = 1 << iota // any pod of this node (NP-55)
	newElsewhere                       // any pod of another node, as destination (CN-35)
	newcomers                          // one of Unknown.Newcomers, or no pod (NP-61)
)

// possibleOccupants returns who may be at the address of the peer, which has no known pod.
func (s *Snapshot) possibleOccupants(d Direction, q *Query, subject, peer *end) (who occupants) {
	who = peer.who
	if s.m.Isolating[d] && s.shareRange(subject.pod, peer.addr) {
		who |= newHere
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
		if !x.match(&withPeer, &matched) || x.decide(&withPeer, &matched).denies() != rule.denies() {
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
	if dst.endpoint != nil && !s.IsLocal(dst.pod) {
		return true
	}
	return dst.endpoint == nil && (dst.dispute != nil || dst.who != noPod || s.m.PodRanges.contain(dst.addr))
}
