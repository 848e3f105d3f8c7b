package steer

import (
	"strconv"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
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
	return []chain{
		{name: otherSourcesChain, rules: otherSourcesRules(cfg)},
		{name: fromPodsChain, rules: fromPodsRules()},
		input.base("-tunnels", -3, []rule.Rule{{ofChecked, rule.IIFName.NotIn(uncheckedSet), rule.Goto(fromPodsChain)}}),
	}
}

func fromPodsRules() []rule.Rule {
	return []rule.Rule{
		{rule.UDPDport.In(tunnelPortsSet), rule.Counter(tunnelsCounter), rule.Drop},
		{rule.L4Proto.In(tunnelProtocolsSet), rule.Counter(tunnelsCounter), rule.Drop},
		{rule.IIFName.In(hostLinksSet), rule.Goto(otherSourcesChain)},
	}
}

// otherSourcesRules queue packets to the node that arrive on the interface of a pod in hostSet with a
// source that is not a pod's address, such as a link-local one. All packets of such a connection are
// queued, because its conntrack entry does not tell which pod opened it.
func otherSourcesRules(cfg Config) []rule.Rule {
	rules := []rule.Rule{clearMark(cfg)} // if another program set it
	for _, f := range families {
		rules = append(rules, rule.Rule{f.Saddr.In(f.set(podsSet)), rule.Accept})
	}
	// The node opened the connection.
	rules = append(append(rules, rule.Rule{replying, rule.Accept}), linkRules()...)
	return append(rules,
		// A DHCP client that has no address yet, or a DHCPv6 client, which uses link-local
		// addresses only (RFC 8415).
		rule.Rule{rule.IPv4.Saddr.Is(prefix("0.0.0.0/32")), rule.UDPDport.Is(rule.Number(67)), rule.IPv4.Daddr.Is(prefix("255.255.255.255/32")), rule.Accept},
		rule.Rule{rule.IPv6.Saddr.Is(linkLocal6), rule.UDPDport.Is(rule.Number(547)), rule.IPv6.Daddr.Is(prefix("ff02::1:2/128")), rule.Accept},
		rule.Rule{rule.Jump(forwardedChain)},
		rule.Rule{rule.Goto(cfg.queueChain())})
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
