package compile

import (
	"encoding/binary"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// chains builds the chains of subjects. Pods that the same policies select
// share one chain.
type chains struct {
	byNamespace map[string][]*networkPolicy
	built       map[chainKey]*policy.Chain
}

// chainKey tells chains apart by the policies that select the subject: their
// places among the policies of the subject's namespace.
type chainKey struct {
	direction policy.Direction
	namespace string
	policies  string
}

func newChains(policies []*networkPolicy) *chains {
	c := &chains{
		byNamespace: make(map[string][]*networkPolicy),
		built:       make(map[chainKey]*policy.Chain),
	}
	for _, p := range policies {
		c.byNamespace[p.namespace] = append(c.byNamespace[p.namespace], p)
	}
	return c
}

// of returns the chain of pod in direction d, nil if no policy isolates it
// (NP-1).
func (c *chains) of(pod *corev1.Pod, d policy.Direction) *policy.Chain {
	var selecting []*networkPolicy
	var key []byte
	for i, p := range c.byNamespace[pod.Namespace] {
		if p.side(d).isolates && p.subject.Matches(labels.Set(pod.Labels)) {
			selecting = append(selecting, p)
			key = binary.AppendUvarint(key, uint64(i))
		}
	}
	if len(selecting) == 0 {
		return nil
	}
	k := chainKey{d, pod.Namespace, string(key)}
	chain := c.built[k]
	if chain == nil {
		chain = networkPolicyChain(selecting, d)
		c.built[k] = chain
	}
	return chain
}

// networkPolicyChain is the union of the rules of all policies (NP-2), and
// behind it the rule that isolates (NP-7).
func networkPolicyChain(selecting []*networkPolicy, d policy.Direction) *policy.Chain {
	chain := &policy.Chain{}
	for _, p := range selecting {
		chain.Policies = append(chain.Policies, &p.ref)
		chain.Rules = append(chain.Rules, p.side(d).rules...)
	}
	chain.Rules = append(chain.Rules, policy.Rule{
		Verdict: policy.Deny,
		Tier:    policy.NetworkPolicyTier,
		Policy:  selecting[0].ref.String(),
		Index:   policy.Isolation,
		AnyPeer: true,
		AnyPort: true,
	})
	return chain
}
