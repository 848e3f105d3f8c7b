package steer

import (
	"fmt"
	"strconv"
)

// Names of the objects that keep pods out of the tunnels of their node, and of those that queue
// what pods send to it from other sources than their addresses.
const (
	fromPodsChain     = "from-pods"
	otherSourcesChain = "other-sources"
	hostLinksSet      = "host-links"

	tunnelPortsSet     = "tunnel-ports"
	tunnelProtocolsSet = "tunnel-protocols"

	tunnelsCounter = "pod-tunnels"
)

// tunnelChains drop what pods send to the tunnels of the node. The inner packets of a
// tunnel can have any source address, and come in by an uplink. The chains are after
// IPVS, which may have made the node the destination, and before all other chains for
// packets to the node.
func tunnelChains(cfg Config) []chain {
	fromPods := fmt.Sprintf("meta nfproto @%s iifname != @%s ", checkedSet, uncheckedSet)
	return []chain{
		{name: otherSourcesChain, rules: otherSourcesRules(cfg)},
		{name: fromPodsChain, rules: fromPodsRules()},
		input.base("-tunnels", -3, []string{fromPods + "goto " + fromPodsChain}),
	}
}

func fromPodsRules() []string {
	count := " counter name " + tunnelsCounter + " drop"
	return []string{
		"udp dport @" + tunnelPortsSet + count,
		"meta l4proto @" + tunnelProtocolsSet + count,
		fmt.Sprintf("iifname @%s goto %s", hostLinksSet, otherSourcesChain),
	}
}

// otherSourcesRules queue each packet to the node that comes in by the interface of a pod in
// hostSet, and whose source is no pod's address, such as a link-local one. All packets of such
// a connection are queued: the connection table does not tell which pod has opened it.
func otherSourcesRules(cfg Config) []string {
	var rules []string
	for _, f := range families {
		rules = append(rules, fmt.Sprintf("%s saddr %s accept", f.ip, f.set(podsSet)))
	}
	// The node has opened the connection.
	rules = append(append(rules, "ct direction reply accept"), linkRules()...)
	return append(rules,
		// A client of DHCP that has no other address yet, or of DHCPv6, which uses no other.
		"ip saddr 0.0.0.0 udp dport 67 ip daddr 255.255.255.255 accept",
		"ip6 saddr fe80::/10 udp dport 547 ip6 daddr ff02::1:2 accept",
		"jump "+forwardedChain,
		"goto "+cfg.queueChain())
}

// addTunnels adds the ports and protocols of tunnels, and the interfaces of pods.
func (c contents) addTunnels(s Sets) {
	if s.CheckSources {
		c.addNames(hostLinksSpec, s.HostLinks)
	}
	for _, port := range s.TunnelPorts {
		c[tunnelPortsSet][element{value: strconv.Itoa(int(port))}] = struct{}{}
	}
	for _, protocol := range s.TunnelProtocols {
		c[tunnelProtocolsSet][element{value: strconv.Itoa(int(protocol))}] = struct{}{}
	}
}
