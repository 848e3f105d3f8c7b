package steer

import (
	"fmt"

	"sigs.k8s.io/knftables"
)

const (
	bridgedChain     = "bridged"
	bridgedBaseChain = "forward-bridged"
	bridgesSet       = "bridges"

	// linksCounter counts what bridgedChain drops.
	linksCounter = "pod-links"
)

// bridgedChains drop what pods of one bridge send to each other with addresses that
// belong to no pod. Only a bridge forwards it: routers do not forward from and to
// link-local addresses, and broadcasts and multicasts only where they are set up to.
func bridgedChains() []chain {
	return []chain{
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
		fmt.Sprintf("iifname != @%s accept", bridgesSet), // all packets of nodes without such bridges
		fmt.Sprintf("oifname != @%s accept", bridgesSet),
	}
	// Almost all that a bridge forwards. The addresses count for established connections, too:
	// those may have begun before the first policy.
	for _, f := range families {
		rules = append(rules, fmt.Sprintf("ct state established %s saddr %s %s daddr %s accept", f.ip, f.set(podsSet), f.ip, f.set(podsSet)))
	}
	return append(rules,
		"ip daddr 169.254.0.0-169.254.255.255 goto "+bridgedChain, // as sources they are forged
		"ip6 saddr fe80::/10 goto "+bridgedChain,
		"ip6 daddr fe80::/10 goto "+bridgedChain,
		// The check of sources finds routes to some of them.
		"fib saddr type { broadcast, multicast } goto "+bridgedChain,
		"fib daddr type { broadcast, multicast } goto "+bridgedChain)
}

func bridgedRules() []string {
	return []string{
		// Neighbour discovery and multicast listener discovery, but not what only routers
		// send: with advertisements and redirects, a pod could route the packets of other
		// pods to itself. Those must have link-local sources, so none is forwarded.
		"ip6 hoplimit 255 icmpv6 type { 133, 135, 136 } accept",
		acceptListeners,
		fmt.Sprintf("counter name %s drop", linksCounter),
	}
}
