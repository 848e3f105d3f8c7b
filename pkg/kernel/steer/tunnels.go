package steer

import (
	"fmt"
	"strconv"
)

// Names of the objects that keep pods out of the tunnels of their node, and that queue packets of pods
// to the node from sources other than their addresses.
const (
	fromPodsChain     = "from-pods"
	otherSourcesChain = "other-sources"
	hostLinksSet      = "host-links"

	tunnelPortsSet     = "tunnel-ports"
	tunnelProtocolsSet = "tunnel-protocols"

	tunnelsCounter = "pod-tunnels"
)

// tunnelChains drop packets from pods to the tunnels of the node: the inner packets of a tunnel can have
// any source address, and arrive on an uplink. The chains are after IPVS, which may have made the node
// the destination, and before all other chains for packets to the node.
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

// otherSourcesRules queue packets to the node that arrive on the interface of a pod in hostSet with a
// source that is not a pod's address, such as a link-local one. All packets of such a connection are
// queued, because its conntrack entry does not tell which pod opened it.
func otherSourcesRules(cfg Config) []string {
	rules := []string{clearMark(cfg)} // if another program set it
	for _, f := range families {
		rules = append(rules, fmt.Sprintf("%s saddr %s accept", f.ip, f.set(podsSet)))
	}
	// The node opened the connection.
	rules = append(append(rules, "ct direction reply accept"), linkRules()...)
	return append(rules,
		// A DHCP client that has no address yet, or a DHCPv6 client, which uses link-local
		// addresses only (RFC 8415).
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
