package lint

import (
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// denyAllNetworks finds a Deny of all addresses of a family on every port that no earlier
// rule exempts pods from.
func denyAllNetworks(c *cluster) {
	for _, p := range c.policies {
		if !p.admin() {
			continue
		}
		eachBlock(p, func(d policy.Direction, r *policy.Rule, i, k int, b policy.Block) {
			if r.Action == policy.Deny && r.AnyPort && b.Prefix.Bits() == 0 && !slices.ContainsFunc(rulesBefore(p, d, r), letsPodsThrough) {
				c.find(p, blockField(p, d, r, i, k), "", "%v is denied, with the addresses of all pods and nodes", b.Prefix)
			}
		})
	}
}

// rulesBefore returns the rules of a policy that precede r.
func rulesBefore(p *compiled, d policy.Direction, r *policy.Rule) []policy.Rule {
	rules := p.Rules(d)
	return rules[:slices.IndexFunc(rules, func(o policy.Rule) bool { return o.Index == r.Index })]
}

// letsPodsThrough reports whether a rule passes or allows connections to pods of other
// namespaces on every port.
func letsPodsThrough(r policy.Rule) bool {
	return r.Action != policy.Deny && r.AnyPort && slices.ContainsFunc(r.Peers, func(p policy.Peer) bool {
		return p.Pods != nil && p.Pods.Namespace == "" && p.Pods.SelectsWhole()
	})
}

// adminTexts returns the values that list selects from the peers of rules in an administrator's
// policy. A NetworkPolicy has none.
func adminTexts[T ~string](p *compiled, field string, list func(proposed.EgressPeer) []T) []text {
	spec := p.Kind.AdminSpec(p.object)
	if spec == nil {
		return nil
	}
	var all []text
	for d, rules := range spec.Rules {
		for i, r := range rules {
			for j, peer := range r.Peers {
				all = append(all, texts(policy.Direction(d), i, j, field, list(peer))...)
			}
		}
	}
	return all
}
