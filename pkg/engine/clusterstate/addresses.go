package clusterstate

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// addresses tracks which pod owns which address. Addresses are reused while the API still shows
// their former pods, so several pods can claim one.
type addresses struct {
	// node is the enforcing node: its own sandboxes take precedence over what the API shows of pods
	// elsewhere. It is empty if all nodes are equal.
	node            string
	awaitNamespaces bool // see Config

	owners policy.Endpoints
	edit   *policy.EndpointsEdit // nil while nothing changes
	// contested holds the claims to addresses that have several claims, or a claim but no owner.
	contested map[netip.Addr][]*compile.Pod
	// unknown are the addresses that a pod of this node has or had, but no known pod owns: any pod
	// of this node may have them.
	unknown map[netip.Addr]bool
	settled bool // the claims to a contested or node address were settled since this was reset
	homes   homes

	// occupied counts the addresses with an owner in each prefix of forwarded packets, nil
	// while they are not counted.
	occupied         map[netip.Prefix]int
	occupancyChanged bool // a prefix got its first address or lost its last one
}

func newAddresses(cfg Config) addresses {
	return addresses{
		node: cfg.ownNode(), awaitNamespaces: cfg.AwaitNamespaces,
		contested: map[netip.Addr][]*compile.Pod{}, unknown: map[netip.Addr]bool{}, homes: newHomes(cfg.ownNode()),
	}
}

// rank is the evidence for a claim. Among the claims to one address, the lowest rank takes
// precedence.
type rank uint8

const (
	bySandbox rank = iota // the node has made a sandbox with the address for the pod
	byStatus              // the status of a pod of this node has it and no sandbox contradicts
	elsewhere             // the status of a pod of another node has it
	byReport              // the agent of another node reports it of a pod without a status
	outdated              // the status of a pod of this node has it but a sandbox contradicts
	misplaced             // the status of a pod of another node has it, but it is not at home on that node
)

// rank returns the rank of p's claim to addr.
func (a *addresses) rank(p *compile.Pod, addr netip.Addr) rank {
	switch {
	case a.misplaces(p, addr):
		return misplaced
	case !a.isLocal(p) && slices.Contains(p.Addrs, addr):
		return elsewhere
	case !a.isLocal(p):
		return byReport
	case slices.Contains(p.Announced, addr):
		return bySandbox
	case slices.Contains(p.Outdated, addr):
		return outdated
	}
	return byStatus
}

// misplaces reports whether p is a pod of another node and addr is not at home there (NP-62). With
// AllNodes no address is misplaced.
func (a *addresses) misplaces(p *compile.Pod, addr netip.Addr) bool {
	return a.node != "" && p.Node != a.node && (p.Node == "" || !a.homes.mayHavePod(p.Node, addr))
}

// isLocal reports whether p is a pod of this node.
func (a *addresses) isLocal(p *compile.Pod) bool { return a.node != "" && p.Node == a.node }

// claims returns the addresses that p claims. A withheld pod of this node keeps its claims, so that
// no other pod gets its addresses.
func (a *addresses) claims(p *compile.Pod) []netip.Addr {
	if a.withholds(p) && !a.isLocal(p) {
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

// current finishes the pending edit and returns the owners.
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

// replace replaces the claims of old with those of now. Either may be nil. pod finds the pod of an
// endpoint.
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
			a.settle(addr, a.claimsExcept(addr, old, pod))
		}
	}
	for _, addr := range after {
		a.settle(addr, append(a.claimsExcept(addr, old, pod), now))
	}
}

// claimsExcept returns the claims to addr by pods other than p.
func (a *addresses) claimsExcept(addr netip.Addr, p *compile.Pod, pod func(*policy.Endpoint) *compile.Pod) []*compile.Pod {
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
	if best != nil && !a.withholds(best) && a.rank(best, addr) < outdated && !a.disputed(addr, best, claims) {
		owner = &best.Endpoint
	}
	if best != nil && owner == nil && a.isLocal(best) {
		a.unknown[addr] = true
	} else {
		delete(a.unknown, addr)
	}
	if len(claims) > 1 || len(claims) > 0 && owner == nil {
		a.contested[addr], a.settled = claims, true
	} else if a.contested[addr] != nil {
		delete(a.contested, addr)
		a.settled = true
	}
	a.settled = a.settled || a.homes.hosts[addr] != nil
	a.countOccupied(addr, before, owner != nil || a.unknown[addr])
	a.change().Set(addr, owner)
}

// settleAll settles addresses again if their homes may have changed, and reports whether that was
// necessary.
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
		if a.contested[addr] == nil && a.rank(pod(owner), addr) == misplaced {
			unsettled = append(unsettled, addr)
		}
	}
	for _, addr := range unsettled {
		a.settle(addr, a.claimsExcept(addr, nil, pod))
	}
	return true
}

// occupies reports whether a pod has addr or may have it.
func (a *addresses) occupies(addr netip.Addr) bool { return a.at(addr) != nil || a.unknown[addr] }

// first returns the pod whose claim to addr takes precedence, nil if there is none.
func (a *addresses) first(addr netip.Addr, claims []*compile.Pod) (best *compile.Pod) {
	for _, p := range claims {
		if best == nil || a.goesBefore(addr, p, best) {
			best = p
		}
	}
	return best
}

// disputed reports whether best, the first claimant, is a pod of another node and a pod of a third
// node has an equal claim to addr. Then neither gets it, because this node cannot tell which of
// them has it.
func (a *addresses) disputed(addr netip.Addr, best *compile.Pod, claims []*compile.Pod) bool {
	return a.rank(best, addr) == elsewhere && slices.ContainsFunc(claims, func(p *compile.Pod) bool { return a.disputes(addr, best, p) })
}

// disputes reports whether p is a pod with such an equal claim. With AllNodes there are no
// disputes.
func (a *addresses) disputes(addr netip.Addr, best, p *compile.Pod) bool {
	return a.node != "" && p.Node != best.Node && !best.Terminating && !p.Terminating && a.rank(p, addr) == elsewhere
}

// goesBefore reports whether p's claim to addr takes precedence over that of o.
func (a *addresses) goesBefore(addr netip.Addr, p, o *compile.Pod) bool {
	if rankP, rankO := a.rank(p, addr), a.rank(o, addr); rankP != rankO {
		return rankP < rankO
	}
	return p.TakesOver(o)
}
