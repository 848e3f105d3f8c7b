package compile

import (
	"encoding/binary"
	"iter"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// chains builds the chains of subjects. Pods that the same policies select
// share one chain, and it is the same one as long as these policies stay as they
// are, so that what it remembers of peers outlives changes elsewhere.
type chains struct {
	last  uint64 // the id that was given out last
	built map[string]*policy.Chain
	// found is the selection that was found last. Only its memory is of use
	// afterwards: ten thousand policies can select each pod of a node.
	found selection
}

// newID tells a compiled policy from all others and from its earlier versions.
func (c *chains) newID() uint64 {
	c.last++
	return c.last
}

// selection is the policies that select a subject in one direction.
type selection struct {
	admin    []*adminPolicy // of all tiers
	policies []*networkPolicy
	key      []byte // the direction and the ids of the policies
}

// of returns the chain of e in direction d, nil if no policy has a say in it
// (NP-1, CN-6).
func (c *chains) of(admin []*adminPolicy, policies []*networkPolicy, e *policy.Endpoint, d policy.Direction) *policy.Chain {
	s := &c.found
	s.find(admin, policies, e, d)
	if len(s.admin) == 0 && len(s.policies) == 0 {
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
func (c *chains) keep(pods iter.Seq[*Pod]) {
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

func (s *selection) find(admin []*adminPolicy, policies []*networkPolicy, e *policy.Endpoint, d policy.Direction) {
	s.admin, s.policies, s.key = s.admin[:0], s.policies[:0], append(s.key[:0], byte(d))
	for _, p := range admin {
		if p.selects(e, d) {
			s.admin = append(s.admin, p)
			s.key = binary.AppendUvarint(s.key, p.id)
		}
	}
	for _, p := range policies {
		if p.side(d).isolates && p.subject.Matches(e.Labels) {
			s.policies = append(s.policies, p)
			s.key = binary.AppendUvarint(s.key, p.id)
		}
	}
}

// chain puts the rules in the order of tiers (CN-1).
func (s *selection) chain(d policy.Direction) *policy.Chain {
	chain := &policy.Chain{}
	s.addAdmin(chain, policy.AdminTier, d)
	s.addNetworkPolicies(chain, d)
	s.addAdmin(chain, policy.BaselineTier, d)
	return chain
}

func (s *selection) addAdmin(chain *policy.Chain, tier policy.Tier, d policy.Direction) {
	for _, p := range s.admin {
		if p.tier == tier {
			chain.Policies = append(chain.Policies, &p.ref)
			chain.Rules = append(chain.Rules, p.rules(d)...)
		}
	}
}

// addNetworkPolicies adds the union of the rules of all policies (NP-2), and
// behind it the rule that isolates (NP-7). What follows it is never asked
// (CN-5).
func (s *selection) addNetworkPolicies(chain *policy.Chain, d policy.Direction) {
	if len(s.policies) == 0 {
		return
	}
	for _, p := range s.policies {
		chain.Policies = append(chain.Policies, &p.ref)
		chain.Rules = append(chain.Rules, p.side(d).rules...)
	}
	chain.Rules = append(chain.Rules, policy.Rule{
		Action:  policy.Deny,
		Tier:    policy.NetworkPolicyTier,
		Policy:  s.policies[0].ref.String(),
		Index:   policy.Isolation,
		AnyPeer: true,
		AnyPort: true,
	})
}
