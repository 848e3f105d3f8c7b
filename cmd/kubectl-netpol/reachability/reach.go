package reachability

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Reach reports which ports the endpoints of a cluster reach on each other. It uses the
// same evaluator as Cluster.Evaluate but evaluates only one representative of everything
// that policies treat alike: one port of each range that a chain's rules do not divide, one
// peer of all that match the same peers in the rules, and one pod of all with the same
// chain. It is not safe for concurrent use.
type Reach struct {
	c         *Cluster
	family    Family
	endpoints []Endpoint
	places    []place // by endpoint

	traits   *traits
	subjects [2][]*subject // by direction
	peers    []*peer

	sets portSets
	key  []byte // a buffer
}

// place is the position of an endpoint among the subjects and peers.
type place struct {
	// subject is the index into Reach.subjects by direction, or -1 if no policy selects the
	// endpoint.
	subject [2]int
	// peer is the index into Reach.peers by family, or -1 without an address.
	peer [2]int
	// ownAddr is set if the endpoint's own address may affect decisions.
	ownAddr bool
	// class is the same for pods whose fields above are equal.
	class int
	pod   *policy.Endpoint // only for pods with their own network
	// disputed is the name of an endpoint with an address in dispute, which is like no other.
	disputed string
}

// subject is the pods with one chain and, for ingress, with the same declared ports.
type subject struct {
	direction policy.Direction
	chain     *policy.Chain
	addrs     [2]netip.Addr    // of one of the pods, by family
	known     [2]netip.Addr    // its placeholders, if it has them
	traits    []int            // those that the chain's rules distinguish
	names     bool             // some rule has named ports
	spans     []PortRange      // the ranges into which the chain divides ports
	nodes     bool             // some rule has nodes as peers
	sets      map[string]int32 // numbers of sets by key of the peer
}

// peer is the endpoints that rules cannot distinguish, represented by one address.
type peer struct {
	addr   netip.Addr
	known  netip.Addr // its placeholder, if it has one
	kind   peerKind
	traits []int // sorted
	ports  int   // index of the list of named ports
}

// peerKind is what has the address of a peer.
type peerKind byte

const (
	noKind peerKind = iota // several kinds, or a pod that is not known: like no other peer
	podPeer
	nodePeer
	externalPeer
)

// Reach returns the reachability between endpoints.
func (c *Cluster) Reach(endpoints []Endpoint, family Family) *Reach {
	r := &Reach{c: c, family: family, endpoints: endpoints, traits: c.traits(), sets: newPortSets()}
	b := newPlacer(r)
	for i := range endpoints {
		r.places = append(r.places, b.place(&endpoints[i]))
	}
	return r
}

// Between returns the ports that endpoint i reaches on endpoint j, by their indexes in the
// list.
func (r *Reach) Between(i, j int) PortSet { return r.sets.all[r.between(i, j, false)] }

// between returns the number of the set of ports. If twin is set, an endpoint and itself
// are two pods of its kind.
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
	case src.disputed != "" || dst.disputed != "":
		return r.evaluate(i, j, twin)
	}
	return r.ofClasses(src, dst, family)
}

// common returns the family of the connection, as addresses does.
func (r *Reach) common(src, dst *place) (family int, ok bool) {
	for family, name := range []Family{IPv4, IPv6} {
		if (r.family == FirstCommon || r.family == name) && src.peer[family] >= 0 && dst.peer[family] >= 0 {
			return family, true
		}
	}
	return 0, false
}

// withNode returns the ports that i reaches on j if one of them is not a pod.
func (r *Reach) withNode(i, j, family int) int32 {
	src, dst := &r.endpoints[i], &r.endpoints[j]
	q := policy.Query{ToHost: dst.onHost() && sameNode(src, dst), Sender: src.placeholder, Receiver: dst.placeholder}
	from, to, _ := addresses(src, dst, r.family)
	q.Packet.Src, q.Packet.Dst = netip.AddrPortFrom(from, 0), netip.AddrPortFrom(to, 0)
	if _, ok := r.c.alwaysAllowed(src, dst, &q); ok {
		return allPorts
	}
	if q.ToHost || r.places[i].ownAddr || r.places[j].ownAddr {
		return r.evaluate(i, j, false)
	}
	return r.ofClasses(&r.places[i], &r.places[j], family)
}

// ofClasses returns the ports that pods of one place reach on pods of another.
func (r *Reach) ofClasses(src, dst *place, family int) int32 {
	out := r.inDirection(policy.Egress, src.subject[policy.Egress], dst.peer[family], family)
	if out == noPorts {
		return noPorts
	}
	return r.sets.intersect(out, r.inDirection(policy.Ingress, dst.subject[policy.Ingress], src.peer[family], family))
}

// inDirection returns the ports that a subject may use in one direction.
func (r *Reach) inDirection(d policy.Direction, subject, peer, family int) int32 {
	if subject < 0 {
		return allPorts
	}
	s := r.subjects[d][subject]
	r.key = s.appendKey(r.key[:0], r.peers[peer], peer, family)
	set, known := s.sets[string(r.key)]
	if !known {
		set = r.ask(s, r.peers[peer], family)
		s.sets[string(r.key)] = set
	}
	return set
}

// ask returns the ports that a subject may use with a peer.
func (r *Reach) ask(s *subject, p *peer, family int) int32 {
	from, to := s.addrs[family], p.addr
	q := policy.Query{Sender: s.known[family], Receiver: p.known}
	if s.direction == policy.Ingress {
		from, to, q.Sender, q.Receiver = to, from, q.Receiver, q.Sender
	}
	var allowed []PortRange
	for _, span := range s.spans {
		q.Packet = span.Port().packet(from, to, span.First)
		if r.c.snapshotFor(&q).EvaluateDirection(s.direction, q).Allowed() {
			allowed = append(allowed, span)
		}
	}
	return r.sets.place(NewPortSet(allowed...))
}

// appendKey appends a key that is the same for peers that a subject's chain treats alike.
func (s *subject) appendKey(key []byte, p *peer, place, family int) []byte {
	key = append(key, byte(p.kind), byte(family))
	if p.kind == noKind || p.kind == nodePeer && s.nodes {
		return binary.AppendUvarint(key, uint64(place))
	}
	if s.names && s.direction == policy.Egress {
		key = binary.AppendUvarint(key, uint64(p.ports))
	}
	few, many := s.traits, p.traits
	if len(few) > len(many) {
		few, many = many, few
	}
	for _, t := range few {
		if _, has := slices.BinarySearch(many, t); has {
			key = binary.AppendUvarint(key, uint64(t))
		}
	}
	return key
}

// evaluate evaluates a single pair.
func (r *Reach) evaluate(i, j int, twin bool) int32 {
	var chains []*policy.Chain
	for d, endpoint := range map[policy.Direction]int{policy.Egress: i, policy.Ingress: j} {
		if s := r.places[endpoint].subject[d]; s >= 0 {
			chains = append(chains, r.subjects[d][s].chain)
		}
	}
	var allowed []PortRange
	for _, span := range r.traits.spans(chains...) {
		if r.c.evaluate(&r.endpoints[i], &r.endpoints[j], span.Port(), r.family, twin).Allowed {
			allowed = append(allowed, span)
		}
	}
	return r.sets.place(NewPortSet(allowed...))
}
