package clusterstate

import (
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// audits reports whether p is evaluated but not enforced, according to its annotation or, without
// one, that of its namespace (AU-1 to AU-3).
func (c *Cluster) audits(p *compiled) bool {
	enforcement := p.Enforcement
	if enforcement == compile.Unspecified && p.Kind.Namespaced {
		enforcement = c.namespace(p.Ref.Namespace).enforcement
	}
	return c.cfg.Audit || enforcement == compile.Audited
}

// enforce sets the enforcement that the annotation of a namespace asks for and the findings about
// it. It reports whether anything changed.
func (c *Cluster) enforce(name string, e compile.Enforcement, findings []policy.Finding) bool {
	ns := c.namespace(name)
	defer c.forget(name, ns)
	if ns.enforcement == e && slices.EqualFunc(ns.findings, findings, sameFinding) {
		return false
	}
	ns.enforcement, ns.findings, c.derived = e, findings, nil
	for i := range ns.policies {
		p := &ns.policies[i]
		if audited := c.audits(p); audited != p.audited {
			p.audited = audited
			c.byName[policyKey{p.Kind, p.Ref.Namespace, p.Ref.Name}] = *p
			c.markStale(p)
		}
	}
	return true
}

func sameFinding(a, b policy.Finding) bool { return a.Policy == b.Policy && a.Message == b.Message }

// audited returns p as it would be if audited policies were enforced, nil if no audited policy
// selects it. own are the policies of its namespace.
func (c *Cluster) audited(own []compiled, p *compile.Pod) *policy.Endpoint {
	e := &p.Endpoint
	if !selectsAudited(c.policies, e) && !selectsAudited(own, e) {
		return nil
	}
	audited := *e
	audited.Ingress = c.chains.chainFor(c.policies, own, e, policy.Ingress, true)
	audited.Egress = c.chains.chainFor(c.policies, own, e, policy.Egress, true)
	audited.AwaitsStatus, audited.Audited = false, nil
	return &audited
}

// selectsAudited reports whether one of policies is audited and applies to e.
func selectsAudited(policies []compiled, e *policy.Endpoint) bool {
	for i := range policies {
		if p := &policies[i]; p.audited && (p.selects(e, policy.Ingress) || p.selects(e, policy.Egress)) {
			return true
		}
	}
	return false
}

// sameChains reports whether two audited endpoints of one pod are equal. Either may be nil.
func sameChains(a, b *policy.Endpoint) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Version == b.Version && a.Ingress == b.Ingress && a.Egress == b.Egress
}
