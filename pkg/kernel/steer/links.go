package steer

import "sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"

// A packet belongs to the pod behind its interface, whatever its addresses are: the node may route a
// Service's address, or the network of a virtual machine, to a pod. The sets of links have the
// interfaces that lead to a single pod which policies select. Only the interface distinguishes the
// receivers of a multicast: one connection has all of them, so its mark decides about none of them, and
// each packet is queued before it is decided for the connection.
const (
	multicastChain = "multicast"

	ingressLinksSet   = "ingress-links"
	egressLinksSet    = "egress-links"
	multicastLinksSet = "multicast-links"
)

var linkSpecs = []setSpec{
	{name: ingressLinksSet, keyType: "ifname"},
	{name: egressLinksSet, keyType: "ifname"},
	{name: multicastLinksSet, keyType: "ifname"},
}

// podLinkRules select the packets of selected pods at addresses that are not theirs. Earlier rules have
// selected those at their addresses.
func (c Config) podLinkRules() []rule.Rule {
	return []rule.Rule{
		{rule.OIFName.In(ingressLinksSet), rule.Goto(exemptChain)},
		{rule.IIFName.In(egressLinksSet), rule.Goto(c.askChain())},
	}
}

// latePodLinkRules select like podLinkRules, in both directions.
func latePodLinkRules() []rule.Rule {
	var rules []rule.Rule
	for _, set := range []string{ingressLinksSet, egressLinksSet} {
		rules = append(rules,
			rule.Rule{rule.OIFName.In(set), rule.Goto(lateExemptChain)},
			rule.Rule{rule.IIFName.In(set), rule.Goto(lateExemptChain)})
	}
	return rules
}

// multicastRules queue the multicasts that the node routes to pods isolated in ingress, and those from
// pods isolated in egress at addresses that are not theirs.
func multicastRules(cfg Config) []rule.Rule {
	rules := []rule.Rule{
		{rule.IIFName.In(bridgesSet), rule.OIFName.In(bridgesSet), rule.Return}, // see bridgedChain
		clearMark(cfg), // if another program set it
		{fromOwnNode, rule.Accept},
		{rule.OIFName.In(multicastLinksSet), rule.Goto(cfg.queueChain())},
	}
	for _, f := range families {
		rules = append(rules, rule.Rule{rule.IIFName.In(egressLinksSet), f.Saddr.NotIn(f.set(podsSet)), rule.Goto(cfg.queueChain())})
	}
	return rules
}

// addLinks adds the interfaces of selected pods.
func (c contents) addLinks(s Sets) {
	c.addNames(linkSpecs[0], s.IngressLinks)
	c.addNames(linkSpecs[1], s.EgressLinks)
	c.addNames(linkSpecs[2], s.MulticastLinks)
}
