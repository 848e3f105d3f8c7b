package conntrack

import (
	"net"
	"net/netip"
)

// addrSet are the addresses of the node.
type addrSet map[netip.Addr]struct{}

// has reports whether a is the node's own. All of 127.0.0.0/8 is.
func (s addrSet) has(a netip.Addr) bool {
	_, ok := s[a]
	return ok || a.IsLoopback()
}

// interfaceAddrs reads the addresses of all interfaces, those that IPVS keeps
// for Services included. To the kernel they are the addresses of type local, but
// for local routes without an address; nothing sends from those.
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
