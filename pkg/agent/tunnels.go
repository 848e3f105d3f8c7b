package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// tunnelProtocols are the protocols that the kernel decapsulates, by their names in flags.
// They have no ports, and no known program of a node serves them to pods.
var tunnelProtocols = map[string]uint8{
	"ipip": unix.IPPROTO_IPIP,
	"ipv6": unix.IPPROTO_IPV6, // IPv6 in IPv4 and in IPv6
	"gre":  unix.IPPROTO_GRE,
	"l2tp": unix.IPPROTO_L2TP,
	"mpls": unix.IPPROTO_MPLS,
}

// PodTunnels are tunnels of the node into which its pods may send.
type PodTunnels struct {
	Ports     []uint16 // of UDP
	Protocols []uint8
}

// ParsePodTunnel adds "udp/PORT" or the name of a protocol.
func (p *PodTunnels) ParsePodTunnel(s string) error {
	if number, ok := strings.CutPrefix(s, "udp/"); ok {
		port, err := ParsePort(number)
		p.Ports = append(p.Ports, port)
		return err
	}
	protocol, ok := tunnelProtocols[s]
	if !ok {
		return fmt.Errorf("is neither udp/PORT nor one of %s", strings.Join(slices.Sorted(maps.Keys(tunnelProtocols)), ", "))
	}
	p.Protocols = append(p.Protocols, protocol)
	return nil
}

// ParsePort parses a port other than 0.
func ParsePort(s string) (uint16, error) {
	port, err := strconv.ParseUint(s, 10, 16)
	if err != nil || port == 0 {
		return 0, errors.New("has no port in 1-65535")
	}
	return uint16(port), nil
}

// closeTunnels keeps pods out of the node's tunnels: those of its devices and those that the
// operator named.
func (s *sources) closeTunnels(sets *steer.Sets) {
	ports := append(s.links.TunnelPorts(), s.tunnelPorts...)
	slices.Sort(ports)
	sets.TunnelPorts = slices.DeleteFunc(slices.Compact(ports), func(port uint16) bool {
		return slices.Contains(s.podTunnels.Ports, port)
	})
	for _, protocol := range tunnelProtocols {
		if !slices.Contains(s.podTunnels.Protocols, protocol) {
			sets.TunnelProtocols = append(sets.TunnelProtocols, protocol)
		}
	}
	slices.Sort(sets.TunnelProtocols)
}
