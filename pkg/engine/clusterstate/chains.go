package clusterstate

import (
	"encoding/binary"
	"iter"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// chains builds the chains of subjects. Pods that the same policies select share a chain. A chain
// lives as long as these policies do not change, so that cached evaluations of its peers survive
// other changes.
type chains struct {
	last  uint64                   // the newest id
	built map[string]*policy.Chain // by the ids of the policies and the direction
	key   []byte                   // a buffer for keys
}

// newID returns an id that distinguishes a compiled policy from all others and from its earlier
// versions.
func (c *chains) newID() uint64 {
	c.last++
	return c.last
}

// chainFor returns the chain of e in direction d, nil if no policy applies to it (NP-1, CN-6). all
// are the cluster-scoped policies, own those of the pod's namespace. Audited policies are included
// only if audit is set.
func (c *chains) chainFor(all, own []compiled, e *policy.Endpoint, d policy.Direction, audit bool) *policy.Chain {
	c.key = appendSelected(c.key[:0], all, e, d, audit)
	c.key = appendSelected(c.key, own, e, d, audit)
	if len(c.key) == 0 {
		return nil
	}
	c.key = append(c.key, byte(d)) // a policy may apply in both directions
	chain := c.built[string(c.key)]
	if chain == nil {
		chain = append(selected(all, e, d, audit), selected(own, e, d, audit)...).chain(d)
		c.built[string(c.key)] = chain
	}
	return chain
}

// keep drops the chains that no pod uses.
func (c *chains) keep(pods iter.Seq[*compile.Pod]) {
	used := make(map[*policy.Chain]bool, len(c.built))
	for p := range pods {
		used[p.Endpoint.Ingress], used[p.Endpoint.Egress] = true, true
		if audited := p.Endpoint.Audited; audited != nil {
			used[audited.Ingress], used[audited.Egress] = true, true
		}
	}
	for key, chain := range c.built {
		if !used[chain] {
			delete(c.built, key)
		}
	}
}

// appendSelected appends the ids of the policies that apply to e in direction d.
func appendSelected(key []byte, policies []compiled, e *policy.Endpoint, d policy.Direction, audit bool) []byte {
	for i := range policies {
		if p := &policies[i]; p.joins(e, d, audit) {
			key = binary.AppendUvarint(key, p.id)
		}
	}
	return key
}

// selection is the policies that apply to a subject in one direction.
type selection []*compile.Policy

func selected(policies []compiled, e *policy.Endpoint, d policy.Direction, audit bool) (s selection) {
	for i := range policies {
		if p := &policies[i]; p.joins(e, d, audit) {
			s = append(s, p.Policy)
		}
	}
	return s
}

// chain orders the rules by tier (CN-1).
func (s selection) chain(d policy.Direction) *policy.Chain {
	chain := &policy.Chain{}
	s.add(chain, policy.AdminTier, d)
	if first := s.add(chain, policy.NetworkPolicyTier, d); first != nil {
		chain.Rules = append(chain.Rules, isolation(first))
	}
	s.add(chain, policy.BaselineTier, d)
	return chain
}

// add appends the rules of a tier's policies; for NetworkPolicies the result is their union (NP-2).
// It returns the first policy, nil if there is none.
func (s selection) add(chain *policy.Chain, tier policy.Tier, d policy.Direction) (first *compile.Policy) {
	for _, p := range s {
		if p.Tier != tier {
			continue
		}
		if first == nil {
			first = p
		}
		chain.Policies = append(chain.Policies, &p.Ref)
		chain.Rules = append(chain.Rules, p.Rules(d)...)
	}
	return first
}

// isolation returns the last rule of the NetworkPolicy tier (NP-7). Rules after it are never
// evaluated (CN-5). p is the first policy that isolates.
func isolation(p *compile.Policy) policy.Rule {
	return policy.Rule{
		Action:  policy.Deny,
		Tier:    policy.NetworkPolicyTier,
		Policy:  &p.Ref,
		Index:   policy.Isolation,
		AnyPeer: true,
		AnyPort: true,
	}
}
