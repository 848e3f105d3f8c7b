package clusterstate

import (
	"encoding/binary"
	"iter"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// chains builds the chains of subjects. Pods that the same policies select
// share one chain, and it is the same one as long as these policies stay as they
// are, so that what is remembered of its peers outlives changes elsewhere.
type chains struct {
	last  uint64 // the id that was given out last
	built map[string]*policy.Chain
	// found is the selection that was found last. Only its memory is of use
	// afterwards: ten thousand policies can select each pod of a node.
	found selection
}

// newID distinguishes a compiled policy from all others and from its earlier versions.
func (c *chains) newID() uint64 {
	c.last++
	return c.last
}

// selection is the policies that select a subject in one direction.
type selection struct {
	policies []compiled
	key      []byte // the direction and the ids of the policies
}

// of returns the chain of e in direction d, nil if no policy applies to it (NP-1,
// CN-6). all are the policies without a namespace, own those of the pod's.
func (c *chains) of(all, own []compiled, e *policy.Endpoint, d policy.Direction) *policy.Chain {
	s := &c.found
	s.policies, s.key = s.policies[:0], append(s.key[:0], byte(d))
	s.find(all, e, d)
	s.find(own, e, d)
	if len(s.policies) == 0 {
		return nil
	}
	chain := c.built[string(s.key)]
	if chain == nil {
		chain = s.chain(d)
		c.built[string(s.key)] = chain
	}
	return chain
}

// keep forgets the chains that none of pods has.
func (c *chains) keep(pods iter.Seq[*compile.Pod]) {
	used := make(map[*policy.Chain]bool, len(c.built))
	for p := range pods {
		used[p.Endpoint.Ingress], used[p.Endpoint.Egress] = true, true
	}
	for key, chain := range c.built {
		if !used[chain] {
			delete(c.built, key)
		}
	}
}

func (s *selection) find(policies []compiled, e *policy.Endpoint, d policy.Direction) {
	for _, p := range policies {
		if p.applies[d] && p.SelectsPod(e) {
			s.policies = append(s.policies, p)
			s.key = binary.AppendUvarint(s.key, p.id)
		}
	}
}

// chain puts the rules in the order of tiers (CN-1).
func (s *selection) chain(d policy.Direction) *policy.Chain {
	chain := &policy.Chain{}
	s.add(chain, policy.AdminTier, d)
	if first := s.add(chain, policy.NetworkPolicyTier, d); first != nil {
		chain.Rules = append(chain.Rules, isolation(first))
	}
	s.add(chain, policy.BaselineTier, d)
	return chain
}

// add adds the rules of a tier's policies. Of NetworkPolicies that is the union
// (NP-2). It returns the first policy, nil if there is none.
func (s *selection) add(chain *policy.Chain, tier policy.Tier, d policy.Direction) (first *compile.Policy) {
	for _, p := range s.policies {
		if p.Tier != tier {
			continue
		}
		if first == nil {
			first = p.Policy
		}
		chain.Policies = append(chain.Policies, &p.Ref)
		chain.Rules = append(chain.Rules, p.Rules(d)...)
	}
	return first
}

// isolation is the last rule of the NetworkPolicy tier (NP-7). What follows it is
// never evaluated (CN-5). p is the first policy that isolates.
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
