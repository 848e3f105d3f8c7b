// Package links finds out which interfaces of the node lead to pods, without
// knowing the network plugin, and follows their changes. It reads links, routes and
// rules through rtnetlink; it changes nothing, and knows nothing of policies.
package links

import (
	"net/netip"
	"path"
	"slices"
)

// Link is an interface of the node and what the routing tables say of it.
type Link struct {
	Index  int
	Master int // index of the bridge or other link it is a port of, else 0
	Name   string
	Kind   string // of rtnetlink: veth, bridge, vxlan, …; empty for hardware
	// Port is the UDP port at which a tunnel takes packets in, else 0.
	Port uint16
	// Gateway is whether a network is reached through it by somebody who forwards,
	// or all is. Routes that a router advertisement has made do not count: a pod
	// could send one.
	Gateway bool
	// OnLink is whether the routing tables say who is directly behind it.
	OnLink bool
	// InRule is whether a routing rule is about packets that come in by it. The way
	// back to their sources is then not what a look-up without the rule finds.
	InRule bool
	// Hosts are the single addresses that have a route through it.
	Hosts []netip.Addr
}

// Links are those of the node, by index.
type Links map[int]*Link

// uplinks returns the names of the links that are not known to lead to pods of
// this node, in order. Those of an uplink may have come by another way than packets
// to their sources go.
func (l Links) uplinks(local func(netip.Addr) bool, exempt []string) []string {
	var names []string
	for _, link := range l {
		if matches(link.Name, exempt) || l.isUplink(link, local) {
			names = append(names, link.Name)
		}
	}
	slices.Sort(names)
	return names
}

// isUplink goes by what network plugins have in common: a pod is behind one end of
// a pair of links, with a route to its address, or behind a bridge that has an
// address in its network.
func (l Links) isUplink(link *Link, local func(netip.Addr) bool) bool {
	switch {
	case link.InRule:
		return true
	case slices.ContainsFunc(link.Hosts, local):
		return false // though a pod may be a gateway, too
	case link.Gateway:
		return true
	}
	switch link.Kind {
	case "veth", "netkit":
		return false
	case "bridge":
		// Of packets between the ports of a bridge without a network the node
		// knows no sources, and one with hardware behind it is a network's.
		return !link.OnLink || l.hasForeignPort(link)
	}
	return true
}

// hasForeignPort tells whether something else than pods or virtual machines of
// this node is connected to a bridge.
func (l Links) hasForeignPort(bridge *Link) bool {
	for _, port := range l {
		if port.Master == bridge.Index && !slices.Contains([]string{"veth", "netkit", "tun"}, port.Kind) {
			return true
		}
	}
	return false
}

// tunnelPorts returns, in order, the UDP ports at which tunnels take packets in.
func (l Links) tunnelPorts() []uint16 {
	var ports []uint16
	for _, link := range l {
		if link.Port != 0 {
			ports = append(ports, link.Port)
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// CheckPattern tells whether a name of Config.Exempt can be one of an interface.
func CheckPattern(pattern string) error {
	if pattern == "" {
		return errEmptyPattern
	}
	_, err := path.Match(pattern, "")
	return err
}

func matches(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name) // New has checked the pattern
		return ok
	})
}
