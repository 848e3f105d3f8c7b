package steer

import (
	"fmt"

	"sigs.k8s.io/knftables"
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

func bridgedBaseRules() []string {
	rules := []string{
		"ip daddr 224.0.0.0/4 jump " + multicastChain,
		"ip6 daddr ff00::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff jump " + multicastChain,
		fmt.Sprintf("iifname != @%s accept", bridgesSet), // on nodes without such bridges this accepts all packets
		fmt.Sprintf("oifname != @%s accept", bridgesSet),
	}
	// Almost all packets that a bridge forwards. The addresses of established connections are
	// checked, too, because they may have begun before the first policy.
	for _, f := range families {
		rules = append(rules, fmt.Sprintf("ct state established %s saddr %s %s daddr %s accept", f.ip, f.set(podsSet), f.ip, f.set(podsSet)))
	}
	return append(rules,
		"ip daddr 169.254.0.0-169.254.255.255 goto "+bridgedChain, // the source check drops such sources
		"ip6 saddr fe80::/10 goto "+bridgedChain,
		"ip6 daddr fe80::/10 goto "+bridgedChain,
		// The source check finds routes to some of these.
		"fib saddr type { broadcast, multicast } goto "+bridgedChain,
		"fib daddr type { broadcast, multicast } goto "+bridgedChain)
}

func bridgedRules() []string {
	return []string{
		// Neighbour discovery and multicast listener discovery, but no messages of routers: with
		// advertisements and redirects a pod could route the packets of other pods to itself.
		// These must have link-local sources, so routers do not forward them (RFC 4861, 4.2 and 4.5).
		"ip6 hoplimit 255 icmpv6 type { 133, 135, 136 } accept",
		acceptListeners,
		fmt.Sprintf("counter name %s drop", linksCounter),
	}
}
