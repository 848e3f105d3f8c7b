package steer

import (
	"fmt"
	"strconv"
)

// Names of what keeps pods out of the tunnels of their node.
const (
	tunnelsChain       = "tunnels"
	tunnelPortsSet     = "tunnel-ports"
	tunnelProtocolsSet = "tunnel-protocols"

	tunnelsCounter = "pod-tunnels"
)

// tunnelChains drop what pods send to the tunnels of this node. What a tunnel
// device unpacks has any source that its sender likes, and comes from an uplink.
// They are behind IPVS, which may have made this node the destination, and ahead of
// all that looks at packets to the node.
func tunnelChains() []chain {
	return []chain{
		{name: tunnelsChain, rules: tunnelRules()},
		input.base("-"+tunnelsChain, -3, []string{"goto " + tunnelsChain}),
	}
}

func tunnelRules() []string {
	fromPods := fmt.Sprintf("meta nfproto @%s iifname != @%s ", checkedSet, uncheckedSet)
	count := " counter name " + tunnelsCounter + " drop"
	return []string{
		fromPods + "udp dport @" + tunnelPortsSet + count,
		fromPods + "meta l4proto @" + tunnelProtocolsSet + count,
	}
}

// addTunnels sorts what s says of tunnels into the sets.
func (c contents) addTunnels(s Sets) {
	for _, port := range s.TunnelPorts {
		c[tunnelPortsSet][element{word: strconv.Itoa(int(port))}] = struct{}{}
	}
	for _, protocol := range s.TunnelProtocols {
		c[tunnelProtocolsSet][element{word: strconv.Itoa(int(protocol))}] = struct{}{}
	}
}
