package conntrack

import (
	"net"
	"net/netip"
)

// addrSet are the addresses of the node, and those of broadcasts, which it receives.
type addrSet map[netip.Addr]struct{}

var everyone = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// has reports whether a is the node's own. All loopback addresses are.
func (s addrSet) has(a netip.Addr) bool {
	_, ok := s[a]
	return ok || a.IsLoopback() || a == everyone
}

// interfaceAddrs reads the addresses of all interfaces, including those that IPVS
// adds for Services. They are all that the kernel regards as local, except local
// routes without an address; no packet has those as its source.
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

// addBroadcast adds the broadcast address of a network of IPv4 that has one.
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
