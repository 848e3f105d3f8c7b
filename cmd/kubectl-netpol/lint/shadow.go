package lint

import (
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// allowsAll reports whether a rule allows everything.
func allowsAll(r *policy.Rule) bool {
	return r.AnyPeer && r.AnyPort && r.Action == policy.Allow
}

// allowAllShadows finds rules that allow everything to pods for which other NetworkPolicies
// have narrower rules.
func allowAllShadows(c *cluster) {
	for _, p := range c.policies {
		if p.admin() || unreadable(p) {
			continue
		}
		for d, r := range p.rules {
			if !allowsAll(r) {
				continue
			}
			var dead []string
			for _, o := range c.ofNamespace[p.Ref.Namespace] {
				if c.hasNarrower(o, p, d) {
					dead = append(dead, o.ref())
				}
			}
			if len(dead) > 0 {
				c.find(p, ruleField(d, r), "", "all %v of %s is allowed: the other rules of %v in %s have no effect",
					d, selectorText(p.Subject), d, strings.Join(dead, ", "))
			}
		}
	}
}

// hasNarrower reports whether o, of the namespace of p, has narrower rules than allow-all in
// direction d, for some pods that p selects.
func (c *cluster) hasNarrower(o, p *compiled, d policy.Direction) bool {
	if unreadable(o) || !p.selectsAllOf(o) {
		return false
	}
	rules := o.Rules(d)
	if o != p && slices.ContainsFunc(rules, func(r policy.Rule) bool { return allowsAll(&r) }) {
		return false
	}
	return slices.ContainsFunc(rules, func(r policy.Rule) bool { return !allowsAll(&r) })
}

// shadowed finds NetworkPolicies with rules that can be removed, one after the other,
// without changing a connection: other policies isolate the same pods in the same
// directions and allow the same. If the reason is an allow-all rule, allowAllShadows
// reports it.
func shadowed(c *cluster) {
	removed := map[*compiled]bool{}
	for _, p := range slices.Backward(c.policies) {
		if p.admin() || unreadable(p) || len(p.Rules(policy.Ingress))+len(p.Rules(policy.Egress)) == 0 {
			continue
		}
		var candidates []*compiled
		for _, o := range c.withAllOf(p) {
			if o != p && !removed[o] {
				candidates = append(candidates, o)
			}
		}
		in, byIngress := c.shadows(p, candidates, policy.Ingress)
		out, byEgress := c.shadows(p, candidates, policy.Egress)
		if !in || !out {
			continue
		}
		removed[p] = true
		refs := append(byIngress, byEgress...)
		slices.Sort(refs)
		c.find(p, "spec", "", "removing the policy changes nothing: %s allows the same to the same pods", strings.Join(slices.Compact(refs), " with "))
	}
}

// Redundant returns the NetworkPolicies that can be removed, one after the other, without changing
// a connection, and which others allow the same to the same pods.
func Redundant(in Input) map[Object]string {
	c := newCluster(in)
	c.rule, c.besideAllowAll = RuleNamed("shadowed"), true
	shadowed(c)
	redundant := map[Object]string{}
	for _, f := range c.findings {
		_, redundant[f.Object], _ = strings.Cut(f.Message, ": ")
	}
	return redundant
}

// shadows reports whether others isolate in direction d if p does, and allow everything
// that p allows. refs names the policies needed for that.
func (c *cluster) shadows(p *compiled, others []*compiled, d policy.Direction) (ok bool, refs []string) {
	if !p.isolates(d) {
		return true, nil
	}
	isolating := slices.IndexFunc(others, func(o *compiled) bool { return o.isolates(d) })
	if isolating < 0 {
		return false, nil
	}
	if len(p.Rules(d)) == 0 {
		return true, []string{others[isolating].ref()}
	}
	all := c.besideAllowAll || slices.ContainsFunc(p.Rules(d), func(r policy.Rule) bool { return allowsAll(&r) })
	var rules []*policy.Rule
	for _, o := range others {
		rules = append(rules, keep(compiledRules(o, d), func(r *policy.Rule) bool { return all || !allowsAll(r) })...)
	}
	for _, r := range compiledRules(p, d) {
		if !c.covered(r, rules) {
			return false, nil
		}
	}
	for _, o := range others {
		own := keep(rules, func(r *policy.Rule) bool { return *r.Policy == o.Ref })
		if slices.ContainsFunc(compiledRules(p, d), func(r *policy.Rule) bool { return c.covered(r, own) }) {
			refs = append(refs, o.ref())
		}
	}
	if len(refs) == 0 {
		refs = append(refs, others[isolating].ref())
	}
	return true, refs
}
