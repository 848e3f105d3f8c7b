package reachability

import (
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// crowd is a side whose members most subjects treat alike: pods with their own network, or addresses
// outside of the cluster. Cells of two crowds need not be evaluated pair by pair.
type crowd struct {
	r        *Reach
	member   int      // one of them, as an index into Reach.endpoints
	families [2]bool  // that each member has
	subjects [2][]int // the different ones of the members by direction, -1 for none
	peers    [2]crowdPeers
	// first and last are the smallest and the largest of the members' indexes.
	first, last int
}

// crowdPeers are the different peers of a crowd in one family, as indexes into Reach.peers.
type crowdPeers struct {
	alike   [][]int       // by their kind and named ports
	byTrait map[int][]int // those that have a trait
}

// newCrowd returns nil if members of a side must be looked at one by one.
func newCrowd(r *Reach, parts []part) *crowd {
	if len(parts) == 0 {
		return nil
	}
	c := &crowd{r: r, member: parts[0][0], first: parts[0][0], families: r.places[parts[0][0]].families()}
	var peers [2][]int
	for _, p := range parts {
		at, e := &r.places[p[0]], &r.endpoints[p[0]]
		named := at.pod == nil || at.pod.String() == e.Name // and not by an address, which another side may have, too
		if at.ownAddr || e.onHost() || !named || at.families() != c.families {
			return nil
		}
		c.first, c.last = min(c.first, slices.Min(p)), max(c.last, slices.Max(p))
		for d := range c.subjects {
			c.subjects[d] = append(c.subjects[d], at.subject[d])
			peers[d] = append(peers[d], at.peer[d])
		}
	}
	for i := range c.subjects {
		c.subjects[i] = distinct(c.subjects[i])
		if c.families[i] {
			c.peers[i] = newCrowdPeers(r, distinct(peers[i]))
		}
	}
	return c
}

func (p *place) families() [2]bool { return [2]bool{p.peer[0] >= 0, p.peer[1] >= 0} }

// distinct returns the sorted numbers, each once.
func distinct(numbers []int) []int {
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

func newCrowdPeers(r *Reach, peers []int) crowdPeers {
	c := crowdPeers{byTrait: map[int][]int{}}
	kinds := map[[2]int]int{}
	for _, i := range peers {
		p := r.peers[i]
		kind := number(kinds, [2]int{int(p.kind), p.ports})
		if kind == len(c.alike) {
			c.alike = append(c.alike, nil)
		}
		c.alike[kind] = append(c.alike[kind], i)
		for _, t := range p.traits {
			c.byTrait[t] = append(c.byTrait[t], i)
		}
	}
	return c
}

// between returns the ports that all members of c may use on all of to, and those that some may use
// on some. ok is false if the pairs must be evaluated one by one.
func (c *crowd) between(to *crowd) (every, any int32, ok bool) {
	if c.first <= to.last && to.first <= c.last {
		return noPorts, noPorts, false // a pod may be in both
	}
	family, ok := c.r.common(&c.r.places[c.member], &c.r.places[to.member])
	if !ok {
		return noPorts, noPorts, true
	}
	out := c.inDirection(policy.Egress, to, family)
	if out.any == noPorts {
		return noPorts, noPorts, true
	}
	in := to.inDirection(policy.Ingress, c, family)
	sets := &c.r.sets
	ok = out.every == out.any || in.every == in.any || out.uniform && in.uniform
	return sets.intersect(out.every, in.every), sets.intersect(out.any, in.any), ok
}

// reached is the ports that subjects may use with peers in one direction.
type reached struct {
	every, any int32
	uniform    bool // each subject may use the same ports with all peers
}

// inDirection returns the ports that the subjects of c may use with the peers of a crowd.
func (c *crowd) inDirection(d policy.Direction, peers *crowd, family int) reached {
	all := reached{every: allPorts, any: noPorts, uniform: true}
	for _, subject := range c.subjects[d] {
		every, any := peers.with(d, subject, family)
		all.every, all.any = c.r.sets.intersect(all.every, every), c.r.sets.union(all.any, any)
		all.uniform = all.uniform && every == any
	}
	return all
}

// with returns the ports that a subject may use with all members of c, and with some.
func (c *crowd) with(d policy.Direction, subject, family int) (every, any int32) {
	if subject < 0 {
		return allPorts, allPorts
	}
	every, any = allPorts, noPorts
	add := func(peer int) {
		set := c.r.inDirection(d, subject, peer, family)
		every, any = c.r.sets.intersect(every, set), c.r.sets.union(any, set)
	}
	var known []int
	for _, t := range c.r.subjects[d][subject].traits {
		for _, peer := range c.peers[family].byTrait[t] {
			add(peer)
			known = append(known, peer)
		}
	}
	slices.Sort(known)
	for _, alike := range c.peers[family].alike {
		for _, peer := range alike {
			if _, done := slices.BinarySearch(known, peer); !done {
				add(peer) // for all others without a trait of the subject
				break
			}
		}
	}
	return every, any
}
