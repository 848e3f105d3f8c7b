package reachability

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Reach reports which ports endpoints of a cluster reach of each other. It asks the same
// evaluator as Cluster.Evaluate, and asks once for what the policies treat alike: of the ports
// that no rule of a chain tells apart one, of the peers that the same peers of its rules match
// one, and of the pods that have a chain one. It is not safe for concurrent use.
type Reach struct {
	c         *Cluster
	family    Family
	endpoints []Endpoint
	places    []place // of endpoints

	traits   *traits
	subjects [2][]*subject // by direction
	peers    []*peer

	sets portSets
}

// place is where an endpoint is among those that are treated alike.
type place struct {
	// subject is the place in Reach.subjects, -1 where no policy selects the endpoint.
	subject [2]int
	// peer is the place in Reach.peers of each of the two addresses, -1 for none.
	peer [2]int
	// apart is set where the endpoint's own address may decide, too.
	apart bool
	// class is the same for pods of equal fields above.
	class int
	pod   *policy.Endpoint // nil for all but pods with a network of their own
}

// subject is pods of one chain, and of the same ports if the chain is for ingress.
type subject struct {
	direction policy.Direction
	chain     *policy.Chain
	addrs     [2]netip.Addr // of some of the pods, by family
	traits    []int         // those that the chain's rules look at
	names     bool          // some rule has named ports
	spans     []PortRange   // what the chain's ports divide
	known     map[string]int32
	sets      [2][]int32 // of each peer by family, plus one; zero is unknown
}

// peer is endpoints that are alike as peers, by one address.
type peer struct {
	addr   netip.Addr
	pod    bool // of a pod, and of no node
	traits bits
	ports  int // the same for the same named ports
}

// Reach returns the reachability of some endpoints.
func (c *Cluster) Reach(endpoints []Endpoint, family Family) *Reach {
	r := &Reach{c: c, family: family, endpoints: endpoints, traits: newTraits(c), sets: newPortSets()}
	b := newPlacer(r)
	for i := range endpoints {
		r.places = append(r.places, b.place(&endpoints[i]))
	}
	return r
}

// Between returns what endpoint i reaches of endpoint j, by their places in the list.
func (r *Reach) Between(i, j int) PortSet { return r.sets.all[r.between(i, j, false)] }

// between returns the place of the set. With twin, an endpoint and itself are two of its
// kind.
func (r *Reach) between(i, j int, twin bool) int32 {
	src, dst := &r.places[i], &r.places[j]
	family, ok := r.common(src, dst)
	switch {
	case !ok:
		return noPorts
	case src.pod == nil || dst.pod == nil:
		return r.withNode(i, j, family)
	case src.pod == dst.pod && !twin:
		return allPorts
	}
	return r.ofClasses(src, dst, family)
}

// common returns the family of connections, as addresses does.
func (r *Reach) common(src, dst *place) (family int, ok bool) {
	for family, name := range []Family{IPv4, IPv6} {
		if (r.family == FirstCommon || r.family == name) && src.peer[family] >= 0 && dst.peer[family] >= 0 {
			return family, true
		}
	}
	return 0, false
}

// withNode returns what i reaches of j where one of them is not a pod.
func (r *Reach) withNode(i, j, family int) int32 {
	src, dst := &r.endpoints[i], &r.endpoints[j]
	q := policy.Query{ToHost: dst.onHost() && sameNode(src, dst)}
	from, to, _ := addresses(src, dst, r.family)
	q.Packet.Src, q.Packet.Dst = netip.AddrPortFrom(from, 0), netip.AddrPortFrom(to, 0)
	if _, ok := r.c.alwaysAllowed(src, dst, &q); ok {
		return allPorts
	}
	if q.ToHost || r.places[i].apart || r.places[j].apart {
		return r.evaluate(i, j)
	}
	return r.ofClasses(&r.places[i], &r.places[j], family)
}

// ofClasses returns what pods of one place reach of other pods of another.
func (r *Reach) ofClasses(src, dst *place, family int) int32 {
	out := r.half(policy.Egress, src.subject[policy.Egress], dst.peer[family], family)
	if out == noPorts {
		return noPorts
	}
	return r.sets.intersect(out, r.half(policy.Ingress, dst.subject[policy.Ingress], src.peer[family], family))
}

// half returns what a subject may use in one direction.
func (r *Reach) half(d policy.Direction, subject, peer, family int) int32 {
	if subject < 0 {
		return allPorts
	}
	s := r.subjects[d][subject]
	if s.sets[family] == nil {
		s.sets[family] = make([]int32, len(r.peers))
	}
	known := &s.sets[family][peer]
	if *known == 0 {
		*known = 1 + r.ask(s, peer, family)
	}
	return *known - 1
}

// ask returns what a subject may use with a peer: what it may with any other that the same
// peers of its rules match.
func (r *Reach) ask(s *subject, peer, family int) int32 {
	p := r.peers[peer]
	key := s.key(p, peer)
	if set, known := s.known[key]; known {
		return set
	}
	from, to := s.addrs[family], p.addr
	if s.direction == policy.Ingress {
		from, to = to, from
	}
	var allowed []PortRange
	for _, span := range s.spans {
		q := policy.Query{Packet: span.Port().packet(from, to, span.First)}
		if r.c.snapshot.EvaluateDirection(s.direction, q).Allowed() {
			allowed = append(allowed, span)
		}
	}
	set := r.sets.place(NewPortSet(allowed...))
	s.known[key] = set
	return set
}

// key is the same for peers that a subject's chain treats alike.
func (s *subject) key(p *peer, place int) string {
	if !p.pod {
		return fmt.Sprint("address ", place)
	}
	key := make([]byte, 0, 16)
	for i, t := range s.traits {
		if i%8 == 0 {
			key = append(key, 0)
		}
		if p.traits.has(t) {
			key[i/8] |= 1 << (i % 8)
		}
	}
	if s.names && s.direction == policy.Egress {
		key = binary.AppendUvarint(key, uint64(p.ports))
	}
	return string(key)
}

// evaluate evaluates a pair by itself.
func (r *Reach) evaluate(i, j int) int32 {
	var chains []*policy.Chain
	for d, at := range map[policy.Direction]int{policy.Egress: i, policy.Ingress: j} {
		if s := r.places[at].subject[d]; s >= 0 {
			chains = append(chains, r.subjects[d][s].chain)
		}
	}
	var allowed []PortRange
	for _, span := range r.traits.spans(chains...) {
		if r.c.Evaluate(&r.endpoints[i], &r.endpoints[j], span.Port(), r.family).Allowed {
			allowed = append(allowed, span)
		}
	}
	return r.sets.place(NewPortSet(allowed...))
}
