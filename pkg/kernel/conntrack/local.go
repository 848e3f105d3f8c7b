package conntrack

import (
	"net"
	"net/netip"
)

// addrSet holds the node's addresses, including its broadcast addresses.
type addrSet map[netip.Addr]struct{}

var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// has reports whether packets to a are for the node. All loopback addresses are.
func (s addrSet) has(a netip.Addr) bool {
	_, ok := s[a]
	return ok || a.IsLoopback() || a == limitedBroadcast
}

// interfaceAddrs reads the addresses of all interfaces, including those that IPVS adds for
// Services. These are all addresses that the kernel regards as local, except for local routes
// without an address, which are never the source of a packet.
func interfaceAddrs() (addrSet, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	s := make(addrSet, len(addrs))
	for _, a := range addrs {
		if ipNet, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(ipNet.IP); ok {
				s[addr.Unmap()] = struct{}{}
				s.addBroadcast(addr.Unmap(), ipNet.Mask)
			}
		}
	}
	return s, nil
}

// addBroadcast adds the broadcast address of an IPv4 network that has one: a /31 has none (RFC
// 3021).
func (s addrSet) addBroadcast(addr netip.Addr, mask net.IPMask) {
	ones, bits := mask.Size()
	if !addr.Is4() || bits != 32 || ones > 30 {
		return
	}
	b := addr.As4()
	for i := range b {
		b[i] |= ^mask[i]
	}
	s[netip.AddrFrom4(b)] = struct{}{}
}
