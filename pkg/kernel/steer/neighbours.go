package steer

import (
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

const (
	bridgedChain     = "bridged"
	bridgedBaseChain = "forward-bridged"
	bridgesSet       = "bridges"

	// linksCounter counts the packets that bridgedChain drops.
	linksCounter = "pod-links"
)

// bridgedChains drop packets between pods of one bridge with addresses that belong to no pod. Only a
// bridge forwards them: routers do not forward packets from or to link-local addresses, and forward
// broadcasts and multicasts only if configured.
func bridgedChains(cfg Config) []chain {
	return []chain{
		{name: multicastChain, rules: multicastRules(cfg)},
		{name: bridgedChain, rules: bridgedRules()},
		{
			name:     bridgedBaseChain,
			hook:     knftables.ForwardHook,
			priority: knftables.FilterPriority,
			rules:    bridgedBaseRules(),
		},
	}
}

func bridgedBaseRules() []rule.Rule {
	rules := []rule.Rule{
		{rule.IPv4.Daddr.Is(prefix("224.0.0.0/4")), rule.Jump(multicastChain)},
		{rule.IPv6.Daddr.Is(prefix("ff00::/8")), rule.Jump(multicastChain)},
		{rule.IIFName.NotIn(bridgesSet), rule.Accept}, // on nodes without such bridges this accepts all packets
		{rule.OIFName.NotIn(bridgesSet), rule.Accept},
	}
	// Almost all packets that a bridge forwards. The addresses of established connections are
	// checked, too, because they may have begun before the first policy.
	for _, f := range families {
		rules = append(rules, rule.Rule{rule.CTState.Any(rule.Established), f.Saddr.In(f.set(podsSet)), f.Daddr.In(f.set(podsSet)), rule.Accept})
	}
	return append(rules,
		rule.Rule{rule.IPv4.Daddr.Is(prefix("169.254.0.0/16")), rule.Goto(bridgedChain)}, // the source check drops such sources
		rule.Rule{rule.IPv6.Saddr.Is(linkLocal6), rule.Goto(bridgedChain)},
		rule.Rule{rule.IPv6.Daddr.Is(linkLocal6), rule.Goto(bridgedChain)},
		// The source check finds routes to some of these.
		rule.Rule{fromMany, rule.Goto(bridgedChain)},
		rule.Rule{toMany, rule.Goto(bridgedChain)})
}

func bridgedRules() []rule.Rule {
	return []rule.Rule{
		// Neighbour discovery and multicast listener discovery, but no messages of routers: with
		// advertisements and redirects a pod could route the packets of other pods to itself.
		// These must have link-local sources, so routers do not forward them (RFC 4861, 4.2 and 4.5).
		{notForwarded, rule.ICMPv6Type.OneOf(rule.Number(133), rule.Number(135), rule.Number(136)), rule.Accept},
		acceptListeners,
		{rule.Counter(linksCounter), rule.Drop},
	}
}
