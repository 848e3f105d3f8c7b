package resolvers

import (
	"fmt"
	"net/netip"
	"strings"
)

// Port is the default port of resolvers (RFC 1035, section 4.2).
const Port = 53

// Parse parses "IP" or "IP:port", with an IPv6 address in brackets if there is a
// port. The default is Port.
func Parse(s string) (netip.AddrPort, error) {
	resolver, err := netip.ParseAddrPort(s)
	if err != nil {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("resolver %q is neither IP nor IP:port", s)
		}
		resolver = netip.AddrPortFrom(addr, Port)
	}
	resolver = netip.AddrPortFrom(resolver.Addr().Unmap(), resolver.Port())
	if resolver.Port() == 0 || !reachable(resolver.Addr()) {
		return netip.AddrPort{}, fmt.Errorf("resolver %q cannot be reached by pods", s)
	}
	return resolver, nil
}

// reachable reports whether pods can reach a resolver of the node at this address. An address
// with a zone is local to an interface of the node.
func reachable(a netip.Addr) bool {
	return !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() && a.Zone() == ""
}

// parseResolvConf returns the nameservers of a resolv.conf(5) that pods can reach.
func parseResolvConf(text string) []netip.AddrPort {
	var nameservers []netip.AddrPort
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		addr, err := netip.ParseAddr(fields[1])
		if err == nil && reachable(addr) {
			nameservers = append(nameservers, netip.AddrPortFrom(addr.Unmap(), Port))
		}
	}
	return nameservers
}
