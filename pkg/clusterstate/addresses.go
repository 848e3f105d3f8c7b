package clusterstate

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// addresses knows which pod owns which address. Addresses are reused while the API
// still shows who had them before, so several pods can claim one.
type addresses struct {
	// node is the node whose interfaces packets pass: what it has made goes before what
	// the API shows of pods elsewhere. It is empty if all nodes are equal.
	node   string
	owners policy.Endpoints
	edit   *policy.EndpointsEdit // nil while nothing changes
	// contested are the claims to addresses that have several, or one that makes no owner.
	contested map[netip.Addr][]*compile.Pod
	// closed are the addresses that a pod of this node has or had and that no known pod
	// owns: some pod of this node may have them.
	closed  map[netip.Addr]bool
	settled bool // an address was or had been contested since this was last reset
	homes   homes

	// occupied counts the addresses with an owner in each prefix of forwarded packets, nil
	// while they are not counted.
	occupied         map[netip.Prefix]int
	occupancyChanged bool // a prefix has got its first address or lost its last one
}

func newAddresses(node string) addresses {
	return addresses{node: node, contested: map[netip.Addr][]*compile.Pod{}, closed: map[netip.Addr]bool{}, homes: newHomes(node)}
}

// standing is what a claim is based on. Of the claims to one address, the one with the
// lowest standing goes first.
type standing uint8

const (
	bySandbox standing = iota // the node has given the address to the pod
	byStatus                  // the status of a pod of this node has it, and no sandbox contradicts
	elsewhere                 // the status of a pod of another node has it
	outdated                  // the status of a pod of this node has it, and a sandbox contradicts
	misplaced                 // the status of a pod of another node has it, where it is not at home
)

// standing returns that of p's claim to addr.
func (a *addresses) standing(p *compile.Pod, addr netip.Addr) standing {
	switch {
	case a.misplaces(p, addr):
		return misplaced
	case !a.isLocal(p):
		return elsewhere
	case slices.Contains(p.Announced, addr):
		return bySandbox
	case slices.Contains(p.Outdated, addr):
		return outdated
	}
	return byStatus
}

// misplaces reports whether p is a pod of another node, and addr not at home there (NP-62). For
// tools no address is at home anywhere.
func (a *addresses) misplaces(p *compile.Pod, addr netip.Addr) bool {
	return a.node != "" && p.Node != a.node && (p.Node == "" || !a.homes.mayHavePod(p.Node, addr))
}

// isLocal reports whether p is a pod of this node.
func (a *addresses) isLocal(p *compile.Pod) bool { return a.node != "" && p.Node == a.node }

// claims returns the addresses that p claims. A pod of this node that is withheld has its
// addresses nevertheless: no other pod gets them.
func (a *addresses) claims(p *compile.Pod) []netip.Addr {
	if p.Withheld && !a.isLocal(p) {
		return nil
	}
	return p.Claims()
}

func (a *addresses) change() *policy.EndpointsEdit {
	if a.edit == nil {
		a.edit = a.owners.Edit()
	}
	return a.edit
}

// current ends the changes under way and returns the owners.
func (a *addresses) current() policy.Endpoints {
	if a.edit != nil {
		a.owners, a.edit = a.edit.Done(), nil
	}
	return a.owners
}

// at returns the owner of addr, nil if there is none.
func (a *addresses) at(addr netip.Addr) *policy.Endpoint {
	if a.edit != nil {
		return a.edit.At(addr)
	}
	return a.owners.At(addr)
}

// owns reports whether p is the owner of addr.
func (a *addresses) owns(p *compile.Pod, addr netip.Addr) bool { return a.at(addr) == &p.Endpoint }

// replace replaces the claims of old by those of now. Either may be
// nil. pod finds the pod of an endpoint.
func (a *addresses) replace(old, now *compile.Pod, pod func(*policy.Endpoint) *compile.Pod) {
	var before, after []netip.Addr
	if old != nil {
		before = a.claims(old)
		a.homes.count(old.Node, before, -1)
	}
	if now != nil {
		after = a.claims(now)
		a.homes.count(now.Node, after, +1)
	}
	for _, addr := range before {
		if !slices.Contains(after, addr) {
			a.settle(addr, a.others(addr, old, pod))
		}
	}
	for _, addr := range after {
		a.settle(addr, append(a.others(addr, old, pod), now))
	}
}

// others returns the claims to addr of pods other than p.
func (a *addresses) others(addr netip.Addr, p *compile.Pod, pod func(*policy.Endpoint) *compile.Pod) []*compile.Pod {
	if claims := a.contested[addr]; claims != nil {
		return slices.DeleteFunc(slices.Clone(claims), func(c *compile.Pod) bool { return c == p })
	}
	if owner := a.at(addr); owner != nil && (p == nil || owner != &p.Endpoint) {
		return []*compile.Pod{pod(owner)}
	}
	return nil
}

// settle gives addr to the best of its claims (NP-51).
func (a *addresses) settle(addr netip.Addr, claims []*compile.Pod) {
	best, before := a.first(addr, claims), a.occupies(addr)
	var owner *policy.Endpoint
	if best != nil && !best.Withheld && a.standing(best, addr) < outdated && !a.disputed(addr, best, claims) {
		owner = &best.Endpoint
	}
	if closed := best != nil && owner == nil && a.isLocal(best); closed {
		a.closed[addr] = true
	} else {
		delete(a.closed, addr)
	}
	if len(claims) > 1 || len(claims) > 0 && owner == nil {
		a.contested[addr], a.settled = claims, true
	} else if a.contested[addr] != nil {
		delete(a.contested, addr)
		a.settled = true
	}
	a.settled = a.settled || a.homes.hosts[addr] != nil
	a.note(addr, before, owner != nil || a.closed[addr])
	a.change().Set(addr, owner)
}

// settleAll settles the addresses that may be at home on other nodes than when they were
// settled. It reports whether that can be.
func (a *addresses) settleAll(pods iter.Seq[*compile.Pod], pod func(*policy.Endpoint) *compile.Pod) bool {
	if a.homes.recount {
		a.homes.forget()
		for p := range pods {
			a.homes.count(p.Node, a.claims(p), +1)
		}
	}
	if !a.homes.changed {
		return false
	}
	a.homes.changed, a.settled = false, true
	unsettled := slices.Collect(maps.Keys(a.contested))
	owners := a.current()
	for addr, owner := range owners.All() {
		if a.contested[addr] == nil && a.standing(pod(owner), addr) == misplaced {
			unsettled = append(unsettled, addr)
		}
	}
	for _, addr := range unsettled {
		a.settle(addr, a.others(addr, nil, pod))
	}
	return true
}

// occupies reports whether a pod has addr, or may have it.
func (a *addresses) occupies(addr netip.Addr) bool { return a.at(addr) != nil || a.closed[addr] }

// first returns the pod whose claim to addr goes first, nil if there is none.
func (a *addresses) first(addr netip.Addr, claims []*compile.Pod) (best *compile.Pod) {
	for _, p := range claims {
		if best == nil || a.goesBefore(addr, p, best) {
			best = p
		}
	}
	return best
}

// disputed reports whether best, which goes first, is a pod of another node, and a pod of a
// third one has as good a claim to addr. Neither terminates, and no node here knows more.
func (a *addresses) disputed(addr netip.Addr, best *compile.Pod, claims []*compile.Pod) bool {
	return a.standing(best, addr) == elsewhere && slices.ContainsFunc(claims, func(p *compile.Pod) bool { return a.disputes(addr, best, p) })
}

// disputes reports whether p is such a pod. To tools the API alone says which pod it is.
func (a *addresses) disputes(addr netip.Addr, best, p *compile.Pod) bool {
	return a.node != "" && p.Node != best.Node && !best.Terminating && !p.Terminating && a.standing(p, addr) == elsewhere
}

// goesBefore reports whether p's claim to addr goes before that of o.
func (a *addresses) goesBefore(addr netip.Addr, p, o *compile.Pod) bool {
	if mine, other := a.standing(p, addr), a.standing(o, addr); mine != other {
		return mine < other
	}
	return p.TakesOver(o)
}

// addClosed returns ranges with the closed addresses that are in none of them.
func (a *addresses) addClosed(ranges []netip.Prefix) []netip.Prefix {
	all := slices.Clip(ranges)
	for addr := range a.closed {
		if !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(addr) }) {
			all = append(all, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	slices.SortFunc(all[len(ranges):], comparePrefixes)
	return all
}
