package oracle

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// inOrder returns the policies of a tier in evaluation order.
//
// CN-2: by priority, lowest first. CN-7 and CN-8: then by kind and name. The
// BaselineAdminNetworkPolicy, which has no priority, comes last.
func (c Cluster) inOrder(t tier) []adminPolicy {
	policies := c.adminPolicies(t)
	slices.SortFunc(policies, func(a, b adminPolicy) int {
		if aLast, bLast := a.isBANP(), b.isBANP(); aLast != bLast {
			if aLast {
				return +1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
	})
	return policies
}

func (p adminPolicy) isBANP() bool { return p.kind == "BaselineAdminNetworkPolicy" }

// evaluateAdministrators evaluates the policies of a tier for a pod's packet. It returns every
// possible answer of the tier: one, unless the packet's ports are unreadable and it is unknown
// which of the rules with ports match (NP-44).
//
// CN-2: the first matching rule of the policies with the pod as subject decides. CN-3: Deny and
// Allow are final for the direction. CN-4: Pass leaves the tier. CN-6: a packet that no rule
// matches is not affected.
func (c Cluster) evaluateAdministrators(t tier, pod *corev1.Pod, q Query, dir networkingv1.PolicyType) []answer {
	var answers []answer
	for _, policy := range c.inOrder(t) {
		if !c.isSubject(policy, pod) {
			continue
		}
		for i, written := range policy.rules(dir) {
			rule := c.enforced(written)
			m := c.adminRuleMatches(rule, q, dir)
			if m == no {
				continue
			}
			answers = append(answers, rule.answer(fmt.Sprintf("%s %s, rule %d", policy.kind, policy.name, i)))
			if m == yes {
				return answers
			}
		}
	}
	return append(answers, undecided)
}

func (r adminRule) answer(why string) answer {
	switch r.action {
	case allow:
		return answer{DirectionDecision{Allowed, why}, true}
	case pass:
		return undecided
	}
	return answer{DirectionDecision{Denied, why}, true}
}

// isSubject: CN-9, all pods of namespaces, or pods with certain labels in namespaces. A subject
// without a known field, with several, or with an unreadable one selects no pod. CN-10:
// host-network pods are never subjects.
func (c Cluster) isSubject(policy adminPolicy, pod *corev1.Pod) bool {
	return c.subjectIsReadable(policy.subject) && c.inPodSet(policy.subject, pod)
}

// subjectIsReadable: CN-30 and CN-43, a disabled field counts as unknown.
func (c Cluster) subjectIsReadable(s podSet) bool { return s.isReadable() && !c.accountsAreOff(s) }

// rulesFor returns the administrators' rules, as enforced, that apply to a pod in one direction.
func (c Cluster) rulesFor(pod *corev1.Pod, dir networkingv1.PolicyType) []adminRule {
	return append(c.rulesOfTier(adminTier, pod, dir), c.rulesOfTier(baselineTier, pod, dir)...)
}

func (c Cluster) rulesOfTier(t tier, pod *corev1.Pod, dir networkingv1.PolicyType) []adminRule {
	var rules []adminRule
	for _, policy := range c.inOrder(t) {
		if c.isSubject(policy, pod) {
			rules = append(rules, each(policy.rules(dir), c.enforced)...)
		}
	}
	return rules
}

// dependsOnPeer: CN-35, whether an unknown peer might be denied a packet that would be allowed if
// it were not a pod. A rule that denies or passes pods may match it. A rule that matches every peer
// settles the tier, and for an isolated pod the Baseline tier is not evaluated (CN-5).
func (c Cluster) dependsOnPeer(pod *corev1.Pod, q Query, dir networkingv1.PolicyType) bool {
	depends, decided := c.tierDependsOnPeer(adminTier, pod, q, dir)
	if !depends && !decided && !c.isolated(pod, dir) {
		depends, _ = c.tierDependsOnPeer(baselineTier, pod, q, dir)
	}
	return depends
}

func (c Cluster) tierDependsOnPeer(t tier, pod *corev1.Pod, q Query, dir networkingv1.PolicyType) (depends, decided bool) {
	mayPass := false // NP-44: a rule that passes ports may match unreadable ones
	for _, r := range c.rulesOfTier(t, pod, dir) {
		switch m := c.adminRuleMatches(r, q, dir); {
		case m == yes:
			return false, r.action != pass && !mayPass
		case m == perhaps:
			mayPass = mayPass || r.action == pass
		case r.action != allow && c.portsMayMatchUnknownPeer(r, q):
			return true, false
		}
	}
	return false, false
}

// portsMayMatchUnknownPeer reports whether the rule matches the packet's ports and has pods as
// peers, which may include the unknown one. The named ports of an unknown destination are unknown
// as well.
func (c Cluster) portsMayMatchUnknownPeer(r adminRule, q Query) bool {
	proto := q.Packet.Proto
	nameless := c.podAt(q.Packet.Dst.Addr()) == nil && (proto.HasPorts() || proto.Hidden())
	return slices.ContainsFunc(r.peers, func(peer adminPeer) bool {
		return peer.arePods() && (len(r.ports) == 0 || slices.ContainsFunc(r.ports, func(port adminPort) bool {
			return nameless && port.name != nil || c.adminPortMatches(port, peer, q) || c.adminPortMayMatch(port, peer, q)
		}))
	})
}

// anyRuleDenies: NP-55, whether an administrator's rule might deny packets of an unknown pod.
func (c Cluster) anyRuleDenies(dir networkingv1.PolicyType) bool {
	for _, t := range []tier{adminTier, baselineTier} {
		for _, policy := range c.adminPolicies(t) {
			denies := slices.ContainsFunc(policy.rules(dir), func(r adminRule) bool { return c.enforced(r).action == deny })
			if denies && c.subjectIsReadable(policy.subject) {
				return true
			}
		}
	}
	return false
}

// enforced returns the rule that is enforced if parts of r cannot be honoured.
//
// The part that cannot be read is narrowed to nothing for Allow, and widened for Deny and Pass,
// which then denies. CN-30: the API says what this is for peers that is not known, in Allow that
// the rule matches nothing, else that it denies everything.
func (c Cluster) enforced(r adminRule) adminRule {
	switch {
	case r.action == allow && slices.ContainsFunc(r.peers, c.notKnown):
		return adminRule{action: allow}
	case r.action == allow:
		return r // unreadable items match nothing
	case !c.peersAreReadable(r):
		return adminRule{action: deny, everyone: true}
	case slices.ContainsFunc(r.ports, func(p adminPort) bool { return !c.portIsReadable(p) }):
		return adminRule{action: deny, peers: r.peers}
	case r.namesPorts() && !r.allNamePorts(): // CN-14
		return adminRule{action: deny, peers: r.peers}
	case r.action == pass:
		return r
	}
	return adminRule{action: deny, peers: r.peers, ports: r.ports} // an unknown action denies, too
}

func (r adminRule) namesPorts() bool {
	return slices.ContainsFunc(r.ports, func(p adminPort) bool { return p.name != nil })
}

func (r adminRule) allNamePorts() bool {
	return !slices.ContainsFunc(r.peers, func(p adminPeer) bool { return !p.namesPorts() })
}

// match is whether a rule matches a packet.
type match uint8

const (
	no match = iota
	// perhaps is for packets with unreadable ports: the rule matches some of the possible packets
	// (NP-44).
	perhaps
	yes
)

// adminRuleMatches: CN-11, some peer and some port. CN-12: no ports means every protocol, including
// those without ports.
func (c Cluster) adminRuleMatches(r adminRule, q Query, dir networkingv1.PolicyType) match {
	if r.everyone {
		return yes
	}
	m := no
	for _, peer := range r.peers {
		if c.adminPeerMatches(peer, q, dir) {
			m = max(m, c.anyAdminPortMatches(r.ports, peer, q))
		}
	}
	return m
}

func (c Cluster) anyAdminPortMatches(ports []adminPort, peer adminPeer, q Query) match {
	switch {
	case len(ports) == 0:
		return yes
	case slices.ContainsFunc(ports, func(p adminPort) bool { return c.adminPortMatches(p, peer, q) }):
		return yes
	case slices.ContainsFunc(ports, func(p adminPort) bool { return c.adminPortMayMatch(p, peer, q) }):
		return perhaps
	}
	return no
}
