package conntrack

import (
	"net"
	"net/netip"
)

// addrSet are the addresses of the node.
type addrSet map[netip.Addr]struct{}

// has reports whether a is the node's own. All loopback addresses are.
func (s addrSet) has(a netip.Addr) bool {
	_, ok := s[a]
	return ok || a.IsLoopback()
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
			}
		}
	}
	return s, nil
}
