package reachability

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// ExternalAddresses returns one external address for each combination of rule blocks that
// an address can be in, so that together they represent all. They are not addresses of pods
// or nodes and not in pod ranges.
func ExternalAddresses(clusters ...*Cluster) []string {
	return ExternalAddressesExcept(nil, clusters...)
}

// ExternalAddressesExcept is ExternalAddresses without addresses that no packet has when policies
// see it, such as those of Services. Where a combination has no other address, it has none.
func ExternalAddressesExcept(translated map[netip.Addr]bool, clusters ...*Cluster) []string {
	blocks, borders := prefixes(clusters)
	var found []netip.Addr
	seen := map[string]bool{}
	try := func(a netip.Addr) {
		key := membership(a, blocks)
		if !seen[key] && isExternal(a, translated, clusters) {
			seen[key] = true
			found = append(found, a)
		}
	}
	for _, a := range examples {
		if hasFamily(a, clusters) {
			try(a)
		}
	}
	for i, start := range borders {
		var next netip.Addr // of the next range; invalid after the family's last range
		if i+1 < len(borders) && borders[i+1].Is4() == start.Is4() {
			next = borders[i+1]
		}
		if a, ok := externalAddress(start, next, translated, clusters); ok && hasFamily(a, clusters) {
			try(a)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return addressNames(found)
}

// ExternalRanges returns, for each of ExternalAddressesExcept, the addresses that it stands for, as far
// as a name can say it: a block, or the first ranges of addresses. Pods, nodes and Services may have
// some of them.
func ExternalRanges(translated map[netip.Addr]bool, clusters ...*Cluster) map[string]string {
	blocks, borders := prefixes(clusters)
	ranges := map[string][]addressRange{}
	for i, start := range borders {
		last := lastAddress(start)
		if i+1 < len(borders) && borders[i+1].Is4() == start.Is4() {
			last = borders[i+1].Prev()
		}
		if inAny(clusterRanges(clusters), start) {
			continue
		}
		key := membership(start, blocks)
		all := ranges[key]
		if n := len(all); n > 0 && all[n-1].last.Next() == start {
			all[n-1].last = last
		} else {
			all = append(all, addressRange{start, last})
		}
		ranges[key] = all
	}
	names := map[string]string{}
	for _, name := range ExternalAddressesExcept(translated, clusters...) {
		names[name] = rangesName(ranges[membership(netip.MustParseAddr(name), blocks)])
	}
	return names
}

// addressRange is the addresses from first to last.
type addressRange struct{ first, last netip.Addr }

func (r addressRange) String() string {
	for bits := r.first.BitLen(); bits >= 0; bits-- {
		p := netip.PrefixFrom(r.first, bits)
		if p.Masked().Addr() != r.first {
			break
		}
		if end := after(p); end == r.last.Next() {
			return p.String()
		}
	}
	return r.first.String() + "-" + r.last.String()
}

// rangesName names the first ranges, and says how many more there are.
func rangesName(ranges []addressRange) string {
	const most = 2
	var names []string
	for _, r := range ranges[:min(most, len(ranges))] {
		names = append(names, r.String())
	}
	if more := len(ranges) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, " and ")
}

// lastAddress returns the last address of a's family.
func lastAddress(a netip.Addr) netip.Addr {
	bytes := a.AsSlice()
	for i := range bytes {
		bytes[i] = 0xff
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

// NodeAddresses returns the node addresses of all clusters, except those that a
// host-network pod represents in every cluster.
func NodeAddresses(clusters ...*Cluster) []string {
	covered := map[netip.Addr]bool{}
	for name, s := range clusters[0].endpoints {
		differs := func(c *Cluster) bool { o := c.endpoints[name]; return o.first() != s.first() }
		if !slices.ContainsFunc(clusters, differs) {
			covered[s.first()] = true
		}
	}
	var found []netip.Addr
	for _, c := range clusters {
		for a := range c.nodes {
			if !covered[a] && hasFamily(a, clusters) {
				found = append(found, a)
			}
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return addressNames(slices.Compact(found))
}

func addressNames(addrs []netip.Addr) []string {
	names := make([]string, 0, len(addrs))
	for _, a := range addrs {
		names = append(names, a.String())
	}
	return names
}

// examples are documentation addresses (RFC 5737, RFC 3849). They are preferred as
// representatives because readers recognise them.
var examples = []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")}

// prefixes returns the blocks of all rules, including exceptions, and the first address of
// each range between the boundaries of the blocks and of the pod ranges.
func prefixes(clusters []*Cluster) (blocks []netip.Prefix, borders []netip.Addr) {
	divide := clusterRanges(clusters)
	for _, c := range clusters {
		for r := range c.rules() {
			for _, peer := range r.Peers {
				for _, b := range peer.Blocks {
					blocks = append(append(blocks, b.Prefix), b.Except...)
				}
			}
		}
	}
	borders = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	for _, p := range append(divide, blocks...) {
		borders = append(borders, p.Masked().Addr(), after(p))
	}
	borders = slices.DeleteFunc(borders, func(a netip.Addr) bool { return !a.IsValid() })
	slices.SortFunc(borders, netip.Addr.Compare)
	return blocks, slices.Compact(borders)
}

// membership encodes which blocks contain a.
func membership(a netip.Addr, blocks []netip.Prefix) string {
	key := []byte{'6'}
	if a.Is4() {
		key[0] = '4'
	}
	for _, b := range blocks {
		in := byte('0')
		if b.Contains(a) {
			in = '1'
		}
		key = append(key, in)
	}
	return string(key)
}

// hasFamily reports whether some pod has an address of a's family.
func hasFamily(a netip.Addr, clusters []*Cluster) bool {
	family := IPv6
	if a.Is4() {
		family = IPv4
	}
	return slices.ContainsFunc(clusters, func(c *Cluster) bool {
		for _, s := range c.endpoints {
			if s.has(family) {
				return true
			}
		}
		return false
	})
}

// externalAddress returns the first external address from start to before next. This range
// is either completely inside a pod range or completely outside.
func externalAddress(start, next netip.Addr, translated map[netip.Addr]bool, clusters []*Cluster) (netip.Addr, bool) {
	const tries = 1 << 16 // limits how many consecutive pod addresses are skipped
	ranges := clusterRanges(clusters)
	a := start
	for range tries {
		switch {
		case !a.IsValid() || a == next || inAny(ranges, a):
			return netip.Addr{}, false
		case isExternal(a, translated, clusters):
			return a, true
		}
		a = a.Next()
	}
	return netip.Addr{}, false
}

func isExternal(a netip.Addr, translated map[netip.Addr]bool, clusters []*Cluster) bool {
	return !a.IsUnspecified() && !translated[a] && !inAny(clusterRanges(clusters), a) &&
		!slices.ContainsFunc(clusters, func(c *Cluster) bool {
			return c.snapshot.Endpoint(a) != nil || c.nodes[a] != ""
		})
}

func inAny(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

// clusterRanges returns the pod ranges. Agents evaluate an unknown address inside them as
// an unknown pod.
func clusterRanges(clusters []*Cluster) []netip.Prefix {
	var ranges []netip.Prefix
	for _, c := range clusters {
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			ranges = append(ranges, c.snapshot.Ranges(d)...)
		}
	}
	return ranges
}

// after returns the first address after p, or the zero Addr.
func after(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last.Next()
}
