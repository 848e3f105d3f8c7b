package steer

import (
	"fmt"
	"strconv"
)

// Names of the objects that keep pods out of the tunnels of their node.
const (
	tunnelPortsSet     = "tunnel-ports"
	tunnelProtocolsSet = "tunnel-protocols"

	tunnelsCounter = "pod-tunnels"
)

// tunnelChains drop what pods send to the tunnels of the node. The inner packets of a
// tunnel can have any source address, and come in by an uplink. The chains are after
// IPVS, which may have made the node the destination, and before all other chains for
// packets to the node.
func tunnelChains() []chain {
	return []chain{input.base("-tunnels", -3, tunnelRules())}
}

func tunnelRules() []string {
	fromPods := fmt.Sprintf("meta nfproto @%s iifname != @%s ", checkedSet, uncheckedSet)
	count := " counter name " + tunnelsCounter + " drop"
	return []string{
		fromPods + "udp dport @" + tunnelPortsSet + count,
		fromPods + "meta l4proto @" + tunnelProtocolsSet + count,
	}
}

// addTunnels adds the ports and protocols of tunnels.
func (c contents) addTunnels(s Sets) {
	for _, port := range s.TunnelPorts {
		c[tunnelPortsSet][element{value: strconv.Itoa(int(port))}] = struct{}{}
	}
	for _, protocol := range s.TunnelProtocols {
		c[tunnelProtocolsSet][element{value: strconv.Itoa(int(protocol))}] = struct{}{}
	}
}
