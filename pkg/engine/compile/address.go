package compile

import (
	"fmt"
	"net/netip"

	netutils "k8s.io/utils/net"
)

// parsePrefix reads a CIDR in any form that the API has ever accepted (NP-19): it masks host bits,
// reads leading zeros as decimal ("010.0.0.0/8"), and converts an IPv4-mapped IPv6 block to the
// IPv4 block.
func parsePrefix(s string) (netip.Prefix, error) {
	_, ipNet, err := netutils.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR", s)
	}
	addr, _ := netip.AddrFromSlice(ipNet.IP)
	bits, _ := ipNet.Mask.Size()
	if addr.Is4In6() && bits >= 96 {
		addr, bits = addr.Unmap(), bits-96
	}
	return netip.PrefixFrom(addr, bits), nil
}

// parseAddr reads an address from the status of a pod or node and unmaps mapped addresses (NP-20).
// It refuses addresses with which packets cannot travel between nodes (NP-52); API servers refuse
// them as endpoints, too.
func parseAddr(s string) (netip.Addr, bool) {
	addr, _ := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	addr = addr.Unmap()
	return addr, addr.IsGlobalUnicast()
}
