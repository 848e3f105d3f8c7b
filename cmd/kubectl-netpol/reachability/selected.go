package reachability

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// SelectedPods returns how many pods each policy selects in some direction, audited or not. The
// keys have no generation.
func (c *Cluster) SelectedPods() map[policy.Ref]int {
	type pair struct {
		policy policy.Ref
		pod    string
	}
	known := map[pair]bool{}
	counts := map[policy.Ref]int{}
	for _, s := range []*policy.Snapshot{c.snapshot, c.snapshot.Audit()} {
		if s == nil {
			continue
		}
		for e := range c.subjects(s) {
			for _, chain := range []*policy.Chain{e.Ingress, e.Egress} {
				if chain == nil {
					continue
				}
				for _, ref := range chain.Policies {
					p := pair{*ref, e.String()}
					p.policy.Generation = 0
					if !known[p] {
						known[p] = true
						counts[p.policy]++
					}
				}
			}
		}
	}
	return counts
}

// PoliciesOf returns the enforced policies that select a member of a side in a direction, without
// generations. It returns none if there is a member that no policy selects.
func (c *Cluster) PoliciesOf(side *Side, egress bool) []policy.Ref {
	var all []policy.Ref
	known := map[*policy.Chain]bool{}
	for i := range side.Members {
		chain := c.chainOf(&side.Members[i], egress)
		if chain == nil || len(chain.Policies) == 0 {
			return nil
		}
		if known[chain] {
			continue // of a replica
		}
		known[chain] = true
		for _, p := range chain.Policies {
			ref := *p
			ref.Generation = 0
			if !slices.Contains(all, ref) {
				all = append(all, ref)
			}
		}
	}
	return all
}

// Rules returns a key that is equal for pods which have addresses of the same families and equal
// rules in a direction, of whatever policies.
func (c *Cluster) Rules(e *Endpoint, d policy.Direction) any {
	return struct {
		chain  *policy.Chain
		v4, v6 bool
	}{c.equals()[c.chainOf(e, d == policy.Egress)], e.v4.IsValid(), e.v6.IsValid()}
}

// chainOf returns the rules of an endpoint in a direction, or nil if no policy selects it.
func (c *Cluster) chainOf(e *Endpoint, egress bool) *policy.Chain {
	for _, addr := range e.Addrs() {
		at := c.snapshot.Endpoint(e.knownAt(addr))
		if c.disputes.has(addr) {
			at = c.podOf(e)
		}
		switch {
		case at == nil:
		case egress:
			return at.Egress
		default:
			return at.Ingress
		}
	}
	return nil
}

// equalChains returns, for each chain of the cluster, the first one with equal rules.
func equalChains(c *Cluster) map[*policy.Chain]*policy.Chain {
	first := map[string]*policy.Chain{}
	equals := map[*policy.Chain]*policy.Chain{}
	for chain := range c.chains() {
		var key strings.Builder
		for i := range chain.Rules {
			writeRuleKey(&key, &chain.Rules[i])
		}
		if first[key.String()] == nil {
			first[key.String()] = chain
		}
		equals[chain] = first[key.String()]
	}
	return equals
}

// writeRuleKey writes everything of a rule that decides, which is all but its policy.
func writeRuleKey(key *strings.Builder, r *policy.Rule) {
	fmt.Fprintf(key, "%v %v %v %v %v %+v", r.Tier, r.Action, r.Index == policy.Isolation, r.AnyPeer, r.AnyPort, r.Ports)
	for i := range r.Peers {
		p := &r.Peers[i]
		if p.Pods != nil {
			fmt.Fprintf(key, " pods %q", SelectorKey(p.Pods))
		}
		if p.Nodes != nil {
			fmt.Fprintf(key, " nodes %q", labelsKey(p.Nodes))
		}
		fmt.Fprintf(key, " %v %q", p.Blocks, p.Domains)
	}
	key.WriteByte('\n')
}
