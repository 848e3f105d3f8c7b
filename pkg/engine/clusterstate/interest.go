package clusterstate

import (
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// interest tracks which pods of other nodes the policies of this node's pods need.
type interest struct {
	listed     []PodSet
	covers     map[PodSet]bool            // caches whether one of listed includes the set
	chainNeeds map[*policy.Chain][]PodSet // the pods that a chain needs; nil after a namespace has changed
	needs      []PodSet                   // nil after a chain or a pod of this node has changed
}

// chainsChanged records that chains or pods of this node have changed.
func (i *interest) chainsChanged(chains int) {
	i.needs = nil
	if len(i.chainNeeds) > chains {
		i.forget() // some entries belong to old chains
	}
}

// forget drops the cached needs of chains.
func (i *interest) forget() {
	i.chainNeeds = nil
	clear(i.covers)
}

// Needs returns the pods that must be known in addition to this node's pods, so that the last
// snapshot decides as if all pods were known. Sets may overlap. It is for a Cluster with
// Config.Partial.
func (c *Cluster) Needs() []PodSet {
	if c.interest.needs != nil {
		return c.interest.needs
	}
	needs := map[PodSet]bool{}
	for p := range c.allLocal() {
		for _, e := range []*policy.Endpoint{&p.Endpoint, p.Endpoint.Audited} {
			if e == nil {
				continue
			}
			for _, set := range append(c.needsOf(p, e.Ingress, policy.Ingress), c.needsOf(p, e.Egress, policy.Egress)...) {
				needs[set] = true
			}
		}
	}
	c.interest.needs = slices.SortedFunc(maps.Keys(needs), comparePodSets)
	return c.interest.needs
}

// SetListed replaces the sets of pods that have been listed, after all their pods have been set. It
// reports whether verdicts may change.
func (c *Cluster) SetListed(listed []PodSet) bool {
	if slices.Equal(c.interest.listed, listed) {
		return false
	}
	c.interest.listed, c.interest.covers = slices.Clone(listed), map[PodSet]bool{}
	if partial := c.cfg.Partial && !c.interest.covered(PodSet{}); partial != c.addresses.partial {
		c.addresses.partial, c.addresses.homes.changed = partial, true
	}
	c.markInterest()
	return true
}

// markInterest marks the pods of this node, whose interest may have changed.
func (c *Cluster) markInterest() {
	if !c.cfg.Partial {
		return
	}
	for key := range c.local {
		c.stale[key] = true
	}
}

// needsChanged records that rules may need different pods, because namespaces or the ranges of
// nodes have changed.
func (c *Cluster) needsChanged() {
	c.interest.forget()
	c.markInterest()
}

// unlistedPods returns Endpoint.Unlisted for p with these chains.
func (c *Cluster) unlistedPods(p *compile.Pod, in, out *policy.Chain) (unlisted [2]bool) {
	if c.cfg.Partial {
		unlisted[policy.Ingress], unlisted[policy.Egress] = c.unlisted(p, in, policy.Ingress), c.unlisted(p, out, policy.Egress)
	}
	return unlisted
}

// unlisted reports whether pods that a chain of p names are not listed yet.
func (c *Cluster) unlisted(p *compile.Pod, chain *policy.Chain, d policy.Direction) bool {
	return slices.ContainsFunc(c.needsOf(p, chain, d), func(need PodSet) bool { return !c.interest.covered(need) })
}

// covered reports whether a listed set includes need.
func (i *interest) covered(need PodSet) bool {
	covered, known := i.covers[need]
	if !known && len(i.listed) > 0 {
		covered = slices.ContainsFunc(i.listed, func(s PodSet) bool { return s.Includes(need) })
		i.covers[need] = covered
	}
	return covered
}

// needsOf returns the pods that are needed to decide about packets of p by a chain, which may be
// nil.
func (c *Cluster) needsOf(p *compile.Pod, chain *policy.Chain, d policy.Direction) []PodSet {
	switch {
	case c.strays(p), c.waitsForAny(p), len(c.addresses.strays) > 0:
		return []PodSet{{}}
	case chain == nil:
		return nil
	}
	if c.interest.chainNeeds == nil {
		c.interest.chainNeeds = map[*policy.Chain][]PodSet{}
	}
	sets, known := c.interest.chainNeeds[chain]
	if !known {
		sets = c.needsOfRules(chain.Rules, d)
		c.interest.chainNeeds[chain] = sets
	}
	return sets
}

// checkStrays makes all pods needed while a pod of another node has an address in the range of a third
// one: a pod there contradicts it.
func (c *Cluster) checkStrays() {
	if c.addresses.strayed {
		c.interest.needs = nil
		c.markInterest()
	}
	c.addresses.strayed = false
}

// strays reports whether p, a pod of this node, has an address outside of the node's ranges. Then
// pods of other nodes may have addresses inside, and new pods of this node can be distinguished from these
// only if all pods are known.
func (c *Cluster) strays(p *compile.Pod) bool {
	node := c.nodes[p.Node]
	if node == nil {
		return false
	}
	return slices.ContainsFunc(p.Claims(), func(a netip.Addr) bool {
		ofFamily, inside := within(node.PodRanges, a)
		return ofFamily && !inside
	})
}

// waitsForAny reports whether packets of p may wait for its status (CN-35) if they go to pods of
// other nodes, while no range tells such pods from other addresses.
func (c *Cluster) waitsForAny(p *compile.Pod) bool {
	return !c.anyRange() && c.stopsFrom(&p.Endpoint)
}

// anyRange reports whether any node has a pod range.
func (c *Cluster) anyRange() bool {
	for _, n := range c.nodes {
		if len(n.PodRanges) > 0 {
			return true
		}
	}
	return false
}

// needsOfRules returns the pods that rules name, or all pods if a decision requires knowing whether
// the peer is a pod that no rule names. There is no narrower watch for such a peer: API servers
// have no index by status.podIP, and senders of packets would control the number of requests. Rules
// that are never evaluated need no pods.
func (c *Cluster) needsOfRules(rules []policy.Rule, d policy.Direction) []PodSet {
	needs := map[PodSet]bool{}
	for i := range rules {
		r := &rules[i]
		if d == policy.Egress && (StopsPods(r) && c.anyRange() || AsksForPorts(r) || r.NamesDomains()) {
			return []PodSet{{}}
		}
		if r.AnyPeer {
			if r.AnyPort && r.Tier == policy.NetworkPolicyTier { // no rule of this tier passes
				break
			}
			continue
		}
		for _, peer := range r.Peers {
			if peer.Pods != nil {
				c.addSelected(needs, peer.Pods)
			}
		}
	}
	return slices.Collect(maps.Keys(needs))
}

// StopsPods reports whether r is an administrator's rule that denies or passes pods. In egress,
// packets to unknown addresses in pod ranges wait because of such a rule (CN-35).
func StopsPods(r *policy.Rule) bool {
	return r.Tier != policy.NetworkPolicyTier && r.Action != policy.Allow && slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Pods != nil })
}

// AsksForPorts reports whether an egress rule has a named port that matches pods which no rule
// selects as pods.
func AsksForPorts(r *policy.Rule) bool {
	if r.AnyPort || !slices.ContainsFunc(r.Ports, func(p policy.Port) bool { return p.Name != "" }) {
		return false
	}
	return r.AnyPeer || slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Blocks != nil || p.Nodes != nil || p.Domains != nil })
}

// addSelected adds the pods that s selects.
func (c *Cluster) addSelected(needs map[PodSet]bool, s *policy.PodSelector) {
	requirements, selectable := s.Pods.Requirements()
	if !selectable {
		return
	}
	set := PodSet{Namespace: s.Namespace, Labels: selector(requirements...)}
	if s.Namespace != "" || s.Namespaces.Empty() {
		needs[set] = true
		return
	}
	for name, ns := range c.namespaces {
		if ns.labels.Known() && s.Namespaces.Matches(ns.labels) {
			set.Namespace = name
			needs[set] = true
		}
	}
}
