package reachability

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// ExternalAddresses returns addresses outside of some clusters that stand for all: one
// for each set of rules' blocks that an address can be in. Addresses of pods and
// nodes, and of the ranges of pods, are not among them.
func ExternalAddresses(clusters ...*Cluster) []string {
	blocks, borders := prefixes(clusters)
	var found []netip.Addr
	seen := map[string]bool{}
	try := func(a netip.Addr) {
		key := membership(a, blocks)
		if !seen[key] && isExternal(a, clusters) {
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
		var next netip.Addr // of the next range, invalid after the last one of the family
		if i+1 < len(borders) && borders[i+1].Is4() == start.Is4() {
			next = borders[i+1]
		}
		if a, ok := externalAddress(start, next, clusters); ok && hasFamily(a, clusters) {
			try(a)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return addressNames(found)
}

// NodeAddresses returns the addresses of the nodes of some clusters, but for those
// that a host-network pod of all of them stands for.
func NodeAddresses(clusters ...*Cluster) []string {
	covered := map[netip.Addr]bool{}
	for name, s := range clusters[0].endpoints {
		elsewhere := func(c *Cluster) bool { o := c.endpoints[name]; return o.first() != s.first() }
		if !slices.ContainsFunc(clusters, elsewhere) {
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

// examples are documentation addresses (RFC 5737, RFC 3849). They stand for
// others where they can, because they look like what they are.
var examples = []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")}

// prefixes returns the blocks of all rules, holes included, and the first
// addresses of the ranges that they and the ranges of pods divide.
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
		borders = append(borders, p.Masked().Addr(), behind(p))
	}
	borders = slices.DeleteFunc(borders, func(a netip.Addr) bool { return !a.IsValid() })
	slices.SortFunc(borders, netip.Addr.Compare)
	return blocks, slices.Compact(borders)
}

// membership encodes in which of blocks a is.
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

// externalAddress finds the first address from start to before next that is external.
// Of such a range, all or nothing is in a range of pods.
func externalAddress(start, next netip.Addr, clusters []*Cluster) (netip.Addr, bool) {
	const tries = 1 << 16 // addresses of pods that follow each other
	ranges := clusterRanges(clusters)
	a := start
	for range tries {
		switch {
		case !a.IsValid() || a == next || inAny(ranges, a):
			return netip.Addr{}, false
		case isExternal(a, clusters):
			return a, true
		}
		a = a.Next()
	}
	return netip.Addr{}, false
}

func isExternal(a netip.Addr, clusters []*Cluster) bool {
	return !a.IsUnspecified() && !inAny(clusterRanges(clusters), a) &&
		!slices.ContainsFunc(clusters, func(c *Cluster) bool {
			return c.snapshot.Endpoint(a) != nil || c.nodes[a] != ""
		})
}

func inAny(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

// clusterRanges are the ranges of pods in which an unknown address is evaluated.
func clusterRanges(clusters []*Cluster) []netip.Prefix {
	var ranges []netip.Prefix
	for _, c := range clusters {
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			ranges = append(ranges, c.snapshot.Ranges(d)...)
		}
	}
	return ranges
}

// behind returns the first address after p, the zero one if there is none.
func behind(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last.Next()
}
