package clusterstate

import (
	"cmp"
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
	awaitNamespaces bool                  // see Config
	leadsElsewhere  func(netip.Addr) bool // see Config, never nil

	owners policy.Endpoints
	edit   *policy.EndpointsEdit // nil while nothing changes
	// contested holds the claims to addresses that do not simply belong to their only claimant.
	contested map[netip.Addr][]*compile.Pod
	// unknown are the addresses that a pod of this node has or had, but no known pod owns: any pod
	// of this node may have them.
	unknown    map[netip.Addr]bool
	reassigned bool // a contested or node address was assigned since this was reset
	// rehosted is set if the address of a Node was assigned since this was reset.
	rehosted bool
	homes    homes

	// occupied counts the addresses with an owner in each prefix of forwarded packets, nil
	// while they are not counted.
	occupied         map[netip.Prefix]int
	occupancyChanged bool // a prefix got its first address or lost its last one
}

func newAddresses(cfg Config) addresses {
	if cfg.LeadsElsewhere == nil {
		cfg.LeadsElsewhere = func(netip.Addr) bool { return false }
	}
	return addresses{
		node: cfg.ownNode(), awaitNamespaces: cfg.AwaitNamespaces, leadsElsewhere: cfg.LeadsElsewhere,
		contested: map[netip.Addr][]*compile.Pod{}, unknown: map[netip.Addr]bool{}, homes: newHomes(cfg.ownNode()),
	}
}

// rank is the evidence for a claim, the nearest first.
type rank uint8

const (
	bySandbox rank = iota // the node has made a sandbox with the address for the pod
	byStatus              // the status of a pod of this node has it, and neither sandboxes nor routes contradict
	atHome                // the status of a pod of another node has it, and a range of that node
	outside               // the status of a pod of another node has it
	gone                  // the status of a pod of this node has it, but no sandbox, and this node routes it elsewhere
	byReport              // the agent of another node reports it of a pod without a status
	outdated              // the status of a pod of this node has it but a sandbox contradicts
	nowhere               // no node runs the pod
)

// rank returns the rank of p's claim to addr. With AllNodes all claims are equal.
func (a *addresses) rank(p *compile.Pod, addr netip.Addr) rank {
	switch {
	case a.node == "":
		return atHome
	case p.Node == "":
		return nowhere
	case p.Node != a.node && !slices.Contains(p.Addrs, addr):
		return byReport
	case p.Node != a.node && a.homes.isHome(p.Node, addr):
		return atHome
	case p.Node != a.node:
		return outside
	case slices.Contains(p.Announced, addr):
		return bySandbox
	case slices.Contains(p.Outdated, addr):
		return outdated
	case a.leadsElsewhere(addr):
		return gone
	}
	return byStatus
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
	}
	if now != nil {
		after = a.claims(now)
	}
	for _, addr := range before {
		if !slices.Contains(after, addr) {
			a.assign(addr, a.claimsExcept(addr, old, pod))
		}
	}
	for _, addr := range after {
		a.assign(addr, append(a.claimsExcept(addr, old, pod), now))
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

// assign gives addr to the best of its claims (NP-51).
func (a *addresses) assign(addr netip.Addr, claims []*compile.Pod) {
	first, occupied := a.first(addr, claims), a.occupies(addr)
	owner := a.resolve(addr, first, claims)
	if first != nil && owner == nil && a.isLocal(first) {
		a.unknown[addr] = true
	} else {
		delete(a.unknown, addr)
	}
	simple := owner == nil && len(claims) == 0 || len(claims) == 1 && owner == &claims[0].Endpoint
	switch {
	case !simple:
		a.contested[addr], a.reassigned = slices.Grow(claims, 1), true // never nil
	case a.contested[addr] != nil:
		delete(a.contested, addr)
		a.reassigned = true
	}
	if a.homes.hosts[addr] != nil {
		a.reassigned, a.rehosted = true, true
	}
	a.countOccupied(addr, occupied, owner != nil || a.unknown[addr])
	a.change().Set(addr, owner)
}

// resolve returns the pod that has addr, or a dispute: nil if there is none. first is the best of
// claims.
func (a *addresses) resolve(addr netip.Addr, first *compile.Pod, claims []*compile.Pod) *policy.Endpoint {
	switch {
	case first == nil || a.rank(first, addr) == nowhere:
		return a.disputed(addr, policy.Dispute{Here: a.homes.isOwn(addr), NoPod: true, NoHost: a.homes.isForeignHost(addr)})
	case a.withholds(first) || a.rank(first, addr) == outdated:
		return nil
	case a.node == "" || a.isLocal(first):
		return &first.Endpoint
	}
	return a.disputed(addr, a.dispute(addr, first, claims))
}

// dispute returns who may have addr, to which first, a pod of another node, has the best claim.
func (a *addresses) dispute(addr netip.Addr, first *compile.Pod, claims []*compile.Pod) policy.Dispute {
	d := policy.Dispute{Here: a.homes.isOwn(addr)}
	for _, p := range claims {
		if !a.counts(addr, p, first, claims) {
			continue
		}
		d.Pods = append(d.Pods, &p.Endpoint)
		if a.rank(first, addr) != atHome && a.homes.hasOtherHost(p.Node, addr) {
			d.NoPod, d.NoHost = true, a.homes.isForeignHost(addr)
		}
	}
	slices.SortFunc(d.Pods, func(p, o *policy.Endpoint) int {
		return cmp.Or(cmp.Compare(p.Namespace, o.Namespace), cmp.Compare(p.Name, o.Name))
	})
	return d
}

// counts reports whether p may have addr, to which first, a pod of another node, has the best claim.
// A pod at home contradicts the claims of other nodes with ranges; the kubelet of a node without
// could write one, so their claims are as good. A report counts without any status. Of the pods of one
// node only the first counts.
func (a *addresses) counts(addr netip.Addr, p, first *compile.Pod, claims []*compile.Pod) bool {
	switch rank, best := a.rank(p, addr), a.rank(first, addr); {
	case rank == gone, rank > byReport, rank == byReport && best != byReport:
		return false
	case rank == outside && best == atHome && a.homes.hasRange(p.Node, addr):
		return false
	}
	return !slices.ContainsFunc(claims, func(o *compile.Pod) bool { return o != p && o.Node == p.Node && a.goesBefore(addr, o, p) })
}

// disputed returns the endpoint for d: the only pod that may have addr, nil if there is none.
func (a *addresses) disputed(addr netip.Addr, d policy.Dispute) *policy.Endpoint {
	at := a.at(addr)
	switch {
	case len(d.Pods) == 0 && !d.NoHost:
		return nil
	case len(d.Pods) == 1 && !d.NoPod && !d.Here:
		return d.Pods[0]
	case at != nil && at.Dispute.Equal(&d):
		return at // so that it has not changed for snapshots
	}
	return &policy.Endpoint{Dispute: &d}
}

// assignAll assigns addresses again if their homes may have changed, and reports whether that was
// necessary.
func (a *addresses) assignAll(pod func(*policy.Endpoint) *compile.Pod) bool {
	if !a.homes.changed {
		return false
	}
	a.homes.changed, a.reassigned = false, true
	claimed := slices.Collect(maps.Keys(a.contested))
	owners := a.current()
	for addr, owner := range owners.All() {
		if a.contested[addr] == nil && a.mayChange(pod(owner), addr) {
			claimed = append(claimed, addr)
		}
	}
	for addr := range a.homes.hosts {
		if a.contested[addr] == nil && owners.At(addr) == nil && a.homes.isForeignHost(addr) {
			claimed = append(claimed, addr)
		}
	}
	for _, addr := range claimed {
		a.assign(addr, a.claimsExcept(addr, nil, pod))
	}
	return true
}

// reroute assigns the addresses that pods of this and of other nodes claim, because routes may have changed.
// It reports whether an owner changes.
func (a *addresses) reroute(pod func(*policy.Endpoint) *compile.Pod) (changed bool) {
	for _, addr := range slices.Collect(maps.Keys(a.contested)) {
		if claims := a.claimsExcept(addr, nil, pod); slices.ContainsFunc(claims, a.isLocal) {
			before := a.at(addr)
			a.assign(addr, claims)
			changed = changed || a.at(addr) != before
		}
	}
	return changed
}

// mayChange reports whether addr, which belongs to its only claimant p, may have become uncertain.
func (a *addresses) mayChange(p *compile.Pod, addr netip.Addr) bool {
	return !a.isLocal(p) && (a.homes.isOwn(addr) || a.homes.hasOtherHost(p.Node, addr))
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

// goesBefore reports whether p's claim to addr takes precedence over that of o.
func (a *addresses) goesBefore(addr netip.Addr, p, o *compile.Pod) bool {
	if rankP, rankO := a.rank(p, addr), a.rank(o, addr); rankP != rankO {
		return rankP < rankO
	}
	return p.TakesOver(o)
}
