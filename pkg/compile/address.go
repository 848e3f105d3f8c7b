package compile

import (
	"fmt"
	"net/netip"

	netutils "k8s.io/utils/net"
)

// parsePrefix reads a CIDR as the API has always accepted it (NP-19): host bits
// are masked, "010.0.0.0/8" has a decimal leading zero, and an IPv4-mapped IPv6
// block is the IPv4 block that it maps.
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

// parseAddr reads an address of a pod's or node's status; mapped addresses are unmapped
// (NP-20). No pod and no node has an address that packets do not keep on their way between
// nodes (NP-52): API servers refuse such ones as endpoints.
func parseAddr(s string) (netip.Addr, bool) {
	addr, _ := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	addr = addr.Unmap()
	return addr, addr.IsGlobalUnicast()
}
