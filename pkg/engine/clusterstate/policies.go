package clusterstate

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// compiled is a policy with an id that distinguishes it from its earlier versions. The other fields
// are read from all policies at every change: copies here save following a pointer for each of
// thousands of policies.
type compiled struct {
	*compile.Policy
	id           uint64             // see chains
	subject      policy.PodSelector // valid if the policy applies
	applies      [2]bool
	holdsUnknown [2]bool
	stopsPods    [2]bool
	holdsToHost  bool // as holdsUnknown, for packets to the node itself
	selectsNodes bool
	namesDomains bool
	faulty       bool // has findings
	audited      bool // evaluated but not enforced
}

// policyKey names a policy.
type policyKey struct {
	kind            *compile.Kind
	namespace, name string
}

func newCompiled(p *compile.Policy, id uint64) compiled {
	c := compiled{
		Policy: p, id: id, holdsToHost: p.HoldsUnknownToHost(), selectsNodes: p.SelectsNodes(), namesDomains: p.NamesDomains(), faulty: len(p.Findings) > 0,
	}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		c.applies[d] = p.Subject != nil && p.Applies(d)
		c.holdsUnknown[d], c.stopsPods[d] = p.HoldsUnknown(d), p.StopsPods(d)
	}
	if p.Subject != nil {
		c.subject = *p.Subject
	}
	return c
}

// selects reports whether the policy applies to e in direction d.
func (p *compiled) selects(e *policy.Endpoint, d policy.Direction) bool {
	return p.applies[d] && p.subject.Selects(e)
}

// joins reports whether the policy is part of e's chain in direction d. Audited policies are only
// if audit is set.
func (p *compiled) joins(e *policy.Endpoint, d policy.Direction, audit bool) bool {
	return (audit || !p.audited) && p.selects(e, d)
}

func compare(p, o compiled) int { return p.Compare(o.Policy) }

func (c *Cluster) setPolicy(p *compile.Policy) bool { return c.replacePolicy(p.Ref, p.Kind, p) }

// replacePolicy replaces a policy with now, which is nil to delete it. It reports whether anything
// changed.
func (c *Cluster) replacePolicy(ref policy.Ref, kind *compile.Kind, now *compile.Policy) bool {
	list := &c.policies
	if kind.Namespaced {
		ns := c.namespace(ref.Namespace)
		defer c.forget(ref.Namespace, ns)
		list = &ns.policies
	}
	key := policyKey{kind, ref.Namespace, ref.Name}
	old, found := c.byName[key]
	switch {
	case !found && now == nil:
		return false
	case found && now != nil && now.Equal(old.Policy):
		return false
	}
	if found {
		at, _ := slices.BinarySearchFunc(*list, old, compare)
		*list = slices.Delete(*list, at, at+1)
		delete(c.byName, key)
		c.markStale(&old)
	}
	if now != nil {
		p := newCompiled(now, c.chains.newID())
		p.audited = c.audits(&p)
		at, _ := slices.BinarySearchFunc(*list, p, compare)
		*list = slices.Insert(*list, at, p)
		c.byName[key] = p
		c.markStale(&p)
	}
	c.derived = nil
	c.markAnnounced()
	return true
}

// markAnnounced marks the pods of this node whose statuses lack their addresses.
func (c *Cluster) markAnnounced() {
	for key := range c.local {
		if isAheadOfStatus(c.pod(key)) {
			c.stale[key] = true
		}
	}
}

// markStale marks the pods of this node to which p applies: their chains have to
// change.
func (c *Cluster) markStale(p *compiled) {
	for key := range c.local {
		if p.Kind.Namespaced && p.Ref.Namespace != key.namespace {
			continue // a shortcut: selects would return false
		}
		e := &c.pod(key).Endpoint
		if p.selects(e, policy.Ingress) || p.selects(e, policy.Egress) {
			c.stale[key] = true
		}
	}
}

// updateChains gives stale pods the chains of the policies that select them now.
func (c *Cluster) updateChains() {
	for key := range c.stale {
		old := c.pod(key)
		policies := c.namespaces[key.namespace].policies
		in := c.chains.chainFor(c.policies, policies, &old.Endpoint, policy.Ingress, false)
		out := c.chains.chainFor(c.policies, policies, &old.Endpoint, policy.Egress, false)
		awaits := c.awaitsStatus(old)
		audited := c.audited(policies, old)
		if in == old.Endpoint.Ingress && out == old.Endpoint.Egress && awaits == old.Endpoint.AwaitsStatus && sameChains(audited, old.Endpoint.Audited) {
			continue
		}
		now := *old
		now.Endpoint.Ingress, now.Endpoint.Egress, now.Endpoint.AwaitsStatus, now.Endpoint.Audited = in, out, awaits, audited
		c.localPods = nil
		c.replacePod(old, &now)
	}
	if len(c.stale) > 0 {
		c.chains.keep(c.allLocal())
		clear(c.stale)
	}
}

// allPolicies yields all policies, in no order.
func (c *Cluster) allPolicies() iter.Seq[compiled] {
	return func(yield func(compiled) bool) {
		for _, p := range c.policies {
			if !yield(p) {
				return
			}
		}
		for _, ns := range c.namespaces {
			for _, p := range ns.policies {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// derived is everything computed from all policies and nodes except the chains.
type derived struct {
	unknown   policy.Unknown // without the parts that depend on pods
	hosts     map[netip.Addr]*policy.Host
	own       *policy.Host
	findings  []policy.Finding
	forwarded map[string][]netip.Prefix // by namespace, see Model.ForwardedSources
	audit     *policy.Audit             // nil if no policy is audited
}

func (c *Cluster) derive() *derived {
	d := &derived{unknown: policy.Unknown{Ranges: c.rangesOf(c.cfg.enforces)}}
	var all policy.Audit // including audited policies
	audited := false
	for _, ns := range c.namespaces {
		d.findings = append(d.findings, ns.findings...)
	}
	for p := range c.allPolicies() {
		if p.faulty {
			d.findings = append(d.findings, p.Findings...)
		}
		if p.selectsNodes || p.namesDomains {
			d.hosts, d.own = c.allHosts(), c.ownHost()
		}
		audited = audited || p.audited
		c.derivePolicy(&p, &all.Isolating, &all.PodRanges)
		if !p.audited {
			c.derivePolicy(&p, &d.unknown.Isolating, &d.unknown.PodRanges)
			d.unknown.ToHost = d.unknown.ToHost || p.holdsToHost
		}
	}
	if audited {
		d.audit = &all
	}
	c.deriveForwarded(d)
	slices.SortStableFunc(d.findings, compareFindings)
	return d
}

// derivePolicy adds the effects of enforcing p.
func (c *Cluster) derivePolicy(p *compiled, isolating *[2]bool, podRanges **policy.PodRanges) {
	for d, holds := range p.holdsUnknown {
		isolating[d] = isolating[d] || holds
	}
	if p.stopsPods != [2]bool{} || p.namesDomains {
		*podRanges = c.allPodRanges()
	}
}

// compareFindings orders findings by policy. Findings of one policy are already in order.
func compareFindings(a, b policy.Finding) int {
	return cmp.Or(
		cmp.Compare(a.Policy.Kind, b.Policy.Kind),
		cmp.Compare(a.Policy.Namespace, b.Policy.Namespace),
		cmp.Compare(a.Policy.Name, b.Policy.Name),
	)
}
