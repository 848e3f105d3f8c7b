// Package links finds out which interfaces of the node lead to pods, for any network
// plugin, and watches for changes. It reads links, routes and rules from rtnetlink. It
// changes nothing and does not know policies.
package links

import (
	"cmp"
	"maps"
	"net/netip"
	"path"
	"slices"
)

// Link is an interface of the node with its role in the routing tables.
type Link struct {
	Index  int
	Master int // index of the bridge or other link that it is a port of, 0 if none
	Name   string
	Kind   string // rtnetlink's name: veth, bridge, vxlan, …; empty for hardware
	// Port is the UDP port on which a tunnel device receives, 0 for other links.
	Port uint16
	// XDP reports whether an XDP program is attached to it.
	XDP bool
	// Gateway reports whether it has a default route or a route through a gateway.
	// Routes from router advertisements do not count: a pod could send one.
	Gateway bool
	// OnLink reports whether it has a route without a gateway.
	OnLink bool
	// InRule reports whether a routing rule matches packets that arrive on it. The route
	// to their sources then depends on the rule.
	InRule bool
	// Hosts are the single addresses with a route through it. Networks are the other
	// destinations of its routes without a gateway.
	Hosts    []netip.Addr
	Networks []netip.Prefix
	// Direct are those of Hosts whose route has no gateway and is not advertised.
	Direct []netip.Addr
	// Gatewayed are the other destinations of its routes through a gateway, and of default routes.
	Gatewayed []netip.Prefix
}

// Links are the node's links by index.
type Links map[int]*Link

// uplinks returns the sorted names of the links that are not known to lead to pods of this
// node. Routes through uplinks may be asymmetric.
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

// isUplink relies on what network plugins have in common: they connect a pod by a pair of
// links with a route to its address, or by a bridge with an address in the pod's network.
func (l Links) isUplink(link *Link, local func(netip.Addr) bool) bool {
	switch {
	case link.InRule:
		return true
	case slices.ContainsFunc(link.Direct, local):
		return false // a pod may be a gateway, too; an address behind a gateway may be that of a pod that is gone
	case link.Gateway:
		return true
	}
	switch link.Kind {
	case "veth", "netkit":
		return false
	case "bridge":
		// On a bridge without a network the node has no routes to the sources of packets.
		// A bridge with hardware belongs to an external network.
		return !link.OnLink || l.hasOtherPort(link)
	}
	return true
}

// bridges returns the sorted names of the bridges that connect pods of this node. An uplink
// is never one of them, whatever its ports.
func (l Links) bridges(pods []netip.Addr, uplinks []string) []string {
	var names []string
	for _, link := range l {
		if link.Kind == "bridge" && !slices.Contains(uplinks, link.Name) && slices.ContainsFunc(pods, link.reaches) {
			names = append(names, link.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Lead is an interface that leads to pods, or may: a pair may lead to a pod that is not known.
type Lead struct {
	Index uint32
	Name  string
	// Pair reports whether every packet that arrives on it was sent by its only peer: it is
	// not a bridge, and not a port of one.
	Pair bool
	Pods []netip.Addr // sorted, empty if none is known
}

// leads returns the links that lead to some of pods, which are sorted, and pairs, which may lead to
// others. Uplinks lead to none. If a pod
// has a direct route, no other links lead to it, because it may be another pod that advertises or
// should forward them. Likewise a route to a pod comes before those to its network.
func (l Links) leads(pods []netip.Addr, uplinks []string) []Lead {
	found := map[int][]netip.Addr{}
	for _, reached := range []func(*Link) []netip.Addr{
		func(link *Link) []netip.Addr { return link.Direct },
		func(link *Link) []netip.Addr { return link.Hosts },
		func(link *Link) []netip.Addr {
			return slices.DeleteFunc(slices.Clone(pods), func(a netip.Addr) bool { return !link.reaches(a) })
		},
	} {
		isPod, leadsTo := containedIn(pods), map[netip.Addr]bool{}
		for index, link := range l {
			if slices.Contains(uplinks, link.Name) {
				continue
			}
			for _, addr := range reached(link) {
				if isPod(addr) {
					found[index] = append(found[index], addr)
					leadsTo[addr] = true
				}
			}
		}
		pods = slices.DeleteFunc(slices.Clone(pods), func(a netip.Addr) bool { return leadsTo[a] })
	}
	var leads []Lead
	for _, index := range slices.Sorted(maps.Keys(l)) {
		link, leadsTo := l[index], found[index]
		pair := link.isPair() && link.Master == 0
		if len(leadsTo) == 0 && (!pair || slices.Contains(uplinks, link.Name)) {
			continue
		}
		slices.SortFunc(leadsTo, netip.Addr.Compare)
		leads = append(leads, Lead{Index: uint32(index), Name: link.Name, Pair: pair, Pods: slices.Compact(leadsTo)})
	}
	return leads
}

// Destination is what the node sends through an interface.
type Destination struct {
	To    netip.Prefix
	Index uint32 // of the interface
}

// destinations returns the destinations of the routes through the links with these indices, except
// those to the addresses pods, which are sorted. It also returns the destinations of other links
// within these, which the node does not send there. The most specific ones come first.
func (l Links) destinations(indices []uint32, pods []netip.Addr) []Destination {
	var all, others []Destination
	isPod := containedIn(pods)
	for index, link := range l {
		for _, to := range link.destinations() {
			switch {
			case to.IsSingleIP() && isPod(to.Addr()):
			case slices.Contains(indices, uint32(index)):
				all = append(all, Destination{to, uint32(index)})
			default:
				others = append(others, Destination{to, uint32(index)})
			}
		}
	}
	for _, other := range others {
		within := func(d Destination) bool { return d.To.Bits() <= other.To.Bits() && d.To.Contains(other.To.Addr()) }
		if slices.ContainsFunc(all, within) {
			all = append(all, other)
		}
	}
	slices.SortFunc(all, func(a, b Destination) int {
		return cmp.Or(cmp.Compare(b.To.Bits(), a.To.Bits()), a.To.Compare(b.To), cmp.Compare(a.Index, b.Index))
	})
	return slices.Compact(all)
}

// destinations returns the destinations of all its routes.
func (l *Link) destinations() []netip.Prefix {
	all := slices.Concat(l.Networks, l.Gatewayed)
	for _, a := range l.Hosts {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return all
}

// otherPorts returns the sorted names of the ports of all bridges except these.
func (l Links) otherPorts(bridges []string) []string {
	var names []string
	for _, link := range l {
		master := l[link.Master]
		if master != nil && master.Kind == "bridge" && !slices.Contains(bridges, master.Name) {
			names = append(names, link.Name)
		}
	}
	slices.Sort(names)
	return names
}

// ownLink returns the name of the link that leads to the pod with the addresses pod, and to no
// other address in pods. It is empty if there is none or this is uncertain. Only a pair has a
// single peer: a bridge has a port for each pod, and each pod can send with another pod's
// hardware address.
func (l Links) ownLink(pod, pods []netip.Addr) string {
	var own *Link
	for _, link := range l {
		if !slices.ContainsFunc(link.Direct, func(a netip.Addr) bool { return slices.Contains(pod, a) }) {
			continue
		}
		if own != nil {
			return ""
		}
		own = link
	}
	shared := func(a netip.Addr) bool { return !slices.Contains(pod, a) && own.reaches(a) }
	if own == nil || !own.isPair() || own.Master != 0 || slices.ContainsFunc(pods, shared) {
		return ""
	}
	return own.Name
}

// isPair reports whether every packet that arrives on the link was sent by its only peer.
func (l *Link) isPair() bool { return l.Kind == "veth" || l.Kind == "netkit" }

// uplinkKinds are the kinds of links that connect the node itself; hardware has no kind. A macvlan
// or ipvlan link shares its parent with pods, but their packets do not pass through it.
var uplinkKinds = []string{"", "bond", "team", "vlan", "macvlan", "ipvlan", "wireguard"}

// leadsToAny reports whether a link leads to one of pods, other than the node's own links.
func (l Links) leadsToAny(pods []netip.Addr) bool {
	for _, link := range l {
		if !slices.Contains(uplinkKinds, link.Kind) && slices.ContainsFunc(pods, link.reaches) {
			return true
		}
	}
	return false
}

// reaches reports whether it has a route to addr without a gateway.
func (l *Link) reaches(addr netip.Addr) bool {
	return slices.Contains(l.Hosts, addr) || slices.ContainsFunc(l.Networks, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// linkTo returns the link with the most specific route to addr without a gateway, nil if there is
// none or more than one.
func (l Links) linkTo(addr netip.Addr) (to *Link) {
	longest := -1
	for _, link := range l {
		switch bits := link.longestPrefix(addr); {
		case bits > longest:
			to, longest = link, bits
		case bits == longest:
			to = nil
		}
	}
	return to
}

// leadsAway reports whether the most specific route to addr leads through an uplink, to a part of
// one of ranges or to all of it.
func (l Links) leadsAway(addr netip.Addr, ranges []netip.Prefix, isUplink func(*Link) bool) bool {
	longest, away := l.mostSpecific(addr, func(link *Link, _ bool) bool { return isUplink(link) })
	return away && slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(addr) && longest >= r.Bits() })
}

// leadsElsewhere reports whether no link can lead to a pod of this node with addr: the most specific
// routes lead through gateways other than pods, or to a network of the node itself. It does not depend on
// which pods are known, and bridges may have pods without a route of their own.
func (l Links) leadsElsewhere(addr netip.Addr) bool {
	_, elsewhere := l.mostSpecific(addr, func(link *Link, gateway bool) bool {
		if gateway {
			return !link.hasPodOf(addr)
		}
		return slices.Contains(uplinkKinds, link.Kind) && !slices.Contains(link.Direct, addr)
	})
	return elsewhere
}

// mostSpecific returns the length of the most specific routes to addr, -1 if there is none, and whether
// all of their links satisfy which. gateway is false if one through that link has no gateway.
func (l Links) mostSpecific(addr netip.Addr, which func(link *Link, gateway bool) bool) (longest int, all bool) {
	longest = -1
	for _, link := range l {
		bits, gateway := link.longestPrefix(addr), slices.Contains(link.Hosts, addr) && !slices.Contains(link.Direct, addr)
		for _, p := range link.Gatewayed {
			if p.Contains(addr) && p.Bits() > bits {
				bits, gateway = p.Bits(), true
			}
		}
		switch {
		case bits < 0 || bits < longest:
		case bits > longest:
			longest, all = bits, which(link, gateway)
		default:
			all = all && which(link, gateway)
		}
	}
	return longest, all
}

// longestPrefix returns the length of the most specific route to addr without a gateway, or of one to
// addr alone, -1 if there is none.
func (l *Link) longestPrefix(addr netip.Addr) int {
	if slices.Contains(l.Hosts, addr) {
		return addr.BitLen()
	}
	longest := -1
	for _, p := range l.Networks {
		if p.Contains(addr) {
			longest = max(longest, p.Bits())
		}
	}
	return longest
}

// hasOtherPort reports whether the bridge has a port that does not belong to a pod or virtual
// machine of this node.
func (l Links) hasOtherPort(bridge *Link) bool {
	for _, port := range l {
		if port.Master == bridge.Index && !slices.Contains([]string{"veth", "netkit", "tun"}, port.Kind) {
			return true
		}
	}
	return false
}

// tunnelPorts returns the UDP ports on which tunnel devices receive, sorted.
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

// CheckPattern returns nil if pattern is a valid element of Config.Exempt.
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
