package oracle

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// inOrder returns the policies of a tier as they are asked.
//
// CN-2: the smallest priority first. CN-7 and CN-8: equal ones by kind, then by
// name, and the BaselineAdminNetworkPolicy, which has no priority, comes last.
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

// askAdministrators asks the policies of a tier about a pod's packet. It returns
// every answer that the tier may give: one, unless the packet's ports cannot be
// read, so that it is unknown which of the rules with ports match (NP-44).
//
// CN-2: the first rule that matches decides, of policies whose subject the pod is.
// CN-3: Deny and Allow are final for the direction. CN-4: Pass leaves the tier.
// CN-6: what no rule matches is not affected.
func (c Cluster) askAdministrators(t tier, pod *corev1.Pod, q Query, dir networkingv1.PolicyType) []answer {
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

// isSubject: CN-9, pods in namespaces, or pods of some labels in namespaces. A
// subject without a known field, or with both, selects no pod; so does one that cannot be
// read. CN-10: pods of the host's network are never asked about.
func (c Cluster) isSubject(policy adminPolicy, pod *corev1.Pod) bool {
	return policy.subject.isReadable() && c.inPodSet(policy.subject, pod)
}

// rulesFor returns the rules of administrators, as they are enforced, that are
// asked about a pod in one direction.
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

// dependsOnPeer: CN-35, whether a peer of which nothing is known might be denied
// what it would be allowed were it no pod. A rule that denies or passes pods may be
// about it. One that matches whoever it is settles the tier, and for a pod that is
// isolated Baseline is not asked (CN-5).
func (c Cluster) dependsOnPeer(pod *corev1.Pod, q Query, dir networkingv1.PolicyType) bool {
	turns, decided := c.tierTurnsOnThePeer(adminTier, pod, q, dir)
	if !turns && !decided && !c.isolated(pod, dir) {
		turns, _ = c.tierTurnsOnThePeer(baselineTier, pod, q, dir)
	}
	return turns
}

func (c Cluster) tierTurnsOnThePeer(t tier, pod *corev1.Pod, q Query, dir networkingv1.PolicyType) (turns, decided bool) {
	mayPass := false // NP-44: a rule that passes ports may match those that cannot be read
	for _, r := range c.rulesOfTier(t, pod, dir) {
		switch m := c.adminRuleMatches(r, q, dir); {
		case m == yes:
			return false, r.action != pass && !mayPass
		case m == perhaps:
			mayPass = mayPass || r.action == pass
		case r.action != allow && c.isAboutItIfItIsAPeer(r, q):
			return true, false
		}
	}
	return false, false
}

// isAboutItIfItIsAPeer asks for the ports of a rule, whose peers may be the one
// that is unknown. The named ports of an unknown destination are not known
// either.
func (c Cluster) isAboutItIfItIsAPeer(r adminRule, q Query) bool {
	proto := q.Packet.Proto
	nameless := c.podAt(q.Packet.Dst.Addr()) == nil && (proto.HasPorts() || proto.Hidden())
	return slices.ContainsFunc(r.peers, func(peer adminPeer) bool {
		return peer.arePods() && (len(r.ports) == 0 || slices.ContainsFunc(r.ports, func(port adminPort) bool {
			return nameless && port.name != nil || c.adminPortMatches(port, peer, q) || c.adminPortMayMatch(port, peer, q)
		}))
	})
}

// anyRuleDenies: NP-55, whether a pod of which nothing is known might be denied
// something by an administrator.
func (c Cluster) anyRuleDenies(dir networkingv1.PolicyType) bool {
	for _, t := range []tier{adminTier, baselineTier} {
		for _, policy := range c.adminPolicies(t) {
			denies := slices.ContainsFunc(policy.rules(dir), func(r adminRule) bool { return c.enforced(r).action == deny })
			if denies && policy.subject.isReadable() {
				return true
			}
		}
	}
	return false
}

// enforced returns what a rule comes to where parts of it cannot be honoured.
//
// The part that cannot be read is narrowed to nothing for Allow, and widened for
// Deny and Pass, which then denies. CN-30: the API says what this is for peers that
// is not known, in Allow that the rule matches nothing, else that it denies
// everything.
func (c Cluster) enforced(r adminRule) adminRule {
	switch {
	case r.action == allow && slices.ContainsFunc(r.peers, c.notKnown):
		return adminRule{action: allow}
	case r.action == allow:
		return r // what cannot be read matches nothing
	case !c.peersAreReadable(r):
		return adminRule{action: deny, everyone: true}
	case slices.ContainsFunc(r.ports, func(p adminPort) bool { return !c.portIsReadable(p) }):
		return adminRule{action: deny, peers: r.peers}
	case r.namesPorts() && !r.allArePods(): // CN-14
		return adminRule{action: deny, peers: r.peers}
	case r.action == pass:
		return r
	}
	return adminRule{action: deny, peers: r.peers, ports: r.ports} // an action that is not known denies, too
}

func (r adminRule) namesPorts() bool {
	return slices.ContainsFunc(r.ports, func(p adminPort) bool { return p.name != nil })
}

func (r adminRule) allArePods() bool {
	return !slices.ContainsFunc(r.peers, func(p adminPeer) bool { return !p.arePods() })
}

// match is whether a rule matches a packet.
type match uint8

const (
	no match = iota
	// perhaps is for packets whose ports cannot be read: the rule matches some of
	// those that it may be (NP-44).
	perhaps
	yes
)

// adminRuleMatches: CN-11, some peer and some port. CN-12: no ports is every
// protocol, those without ports too.
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
