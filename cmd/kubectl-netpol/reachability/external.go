package reachability

import (
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
	"go4.org/netipx"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// ExternalAddresses returns one external address for each combination of rule blocks that
// an address can be in, so that together they represent all. They are not addresses of pods
// or nodes and not in pod ranges, nor such that no packet has when policies see it, such as those of
// Services. Where a combination has no other address, it has none.
func ExternalAddresses(translated Translated, clusters ...*Cluster) []string {
	ranges := clusterRanges(translated, clusters)
	blocks := blocksOf(clusters)
	borders := bordersOf(ranges, blocks)
	var found []netip.Addr
	seen := map[netip.Prefix]bool{}
	try := func(a netip.Addr) {
		key := smallest(a, blocks)
		if !seen[key] && isExternal(a, translated, ranges, clusters) {
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
		if a, ok := externalAddress(start, next, translated, ranges, clusters); ok && hasFamily(a, clusters) {
			try(a)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return addressNames(found)
}

// ExternalRanges returns, for each of ExternalAddresses, the addresses that it stands for, as far
// as a name can say it: a block, or the first ranges of addresses. Pods, nodes and Services may have
// some of them.
func ExternalRanges(translated Translated, clusters ...*Cluster) map[string]string {
	inCluster := clusterRanges(translated, clusters)
	blocks := blocksOf(clusters)
	_, ranges := partition(blocks, inCluster, func(start netip.Addr) bool { return !inCluster.Lookup(start) })
	names := map[string]string{}
	for _, name := range ExternalAddresses(translated, clusters...) {
		names[name] = rangesName(ranges[smallest(netip.MustParseAddr(name), blocks)])
	}
	return names
}

// partition divides the addresses by the boundaries of blocks and of limits. It returns those that are
// wanted by the smallest block that contains them, and these blocks in the order of the addresses.
func partition(blocks, limits *bart.Lite, wanted func(start netip.Addr) bool) (order []netip.Prefix, ranges map[netip.Prefix][]netipx.IPRange) {
	borders := bordersOf(limits, blocks)
	ranges = map[netip.Prefix][]netipx.IPRange{}
	for i, start := range borders {
		last := netipx.PrefixLastIP(netip.PrefixFrom(start, 0))
		if i+1 < len(borders) && borders[i+1].Is4() == start.Is4() {
			last = borders[i+1].Prev()
		}
		if !wanted(start) {
			continue
		}
		key := smallest(start, blocks)
		all := ranges[key]
		switch n := len(all); {
		case n == 0:
			order = append(order, key)
			fallthrough
		case all[n-1].To().Next() != start:
			all = append(all, netipx.IPRangeFrom(start, last))
		default:
			all[n-1] = netipx.IPRangeFrom(all[n-1].From(), last)
		}
		ranges[key] = all
	}
	return order, ranges
}

// rangeName returns a block if the range is one, else "first-last".
func rangeName(r netipx.IPRange) string {
	if p, ok := r.Prefix(); ok {
		return p.String()
	}
	return r.String()
}

// rangesName names the first ranges, and says how many more there are.
func rangesName(ranges []netipx.IPRange) string {
	var names []string
	for _, r := range ranges {
		names = append(names, rangeName(r))
	}
	return words.Few(names, 2, " and ")
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
			if !covered[a] && !workloads.IsPlaceholder(a) && hasFamily(a, clusters) {
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

// blocksOf returns the blocks of all rules, including exceptions.
func blocksOf(clusters []*Cluster) *bart.Lite {
	blocks := &bart.Lite{}
	for _, c := range clusters {
		for r := range c.rules() {
			for i := range r.Peers {
				for _, p := range prefixesOf(&r.Peers[i]) {
					blocks.Insert(p)
				}
			}
		}
	}
	return blocks
}

// bordersOf returns the first address of each range between the boundaries of prefixes.
func bordersOf(sets ...*bart.Lite) []netip.Addr {
	borders := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	for _, prefixes := range sets {
		for p := range prefixes.All() {
			borders = append(borders, p.Addr(), netipx.PrefixLastIP(p).Next())
		}
	}
	borders = slices.DeleteFunc(borders, func(a netip.Addr) bool { return !a.IsValid() })
	slices.SortFunc(borders, netip.Addr.Compare)
	return slices.Compact(borders)
}

// smallest returns the smallest block that contains a, or all addresses of its family. It is equal
// for addresses that are in the same blocks: what contains a block contains all of its addresses.
func smallest(a netip.Addr, blocks *bart.Lite) netip.Prefix {
	if p, ok := blocks.LookupPrefixLPM(netip.PrefixFrom(a, a.BitLen())); ok {
		return p
	}
	return netip.PrefixFrom(a, 0).Masked()
}

// hasFamily reports whether some pod has an address of a's family.
func hasFamily(a netip.Addr, clusters []*Cluster) bool {
	family := IPv6
	if a.Is4() {
		family = IPv4
	}
	return slices.ContainsFunc(clusters, func(c *Cluster) bool { return c.families[family] })
}

// externalAddress returns the first external address from start to before next. This range
// is either completely inside a range of pods or Services, or completely outside.
func externalAddress(start, next netip.Addr, translated Translated, ranges *bart.Lite, clusters []*Cluster) (netip.Addr, bool) {
	const tries = 1 << 16 // limits how many consecutive pod addresses are skipped
	a := start
	for range tries {
		switch {
		case !a.IsValid() || a == next || ranges.Lookup(a):
			return netip.Addr{}, false
		case isExternal(a, translated, ranges, clusters):
			return a, true
		}
		a = a.Next()
	}
	return netip.Addr{}, false
}

func isExternal(a netip.Addr, translated Translated, ranges *bart.Lite, clusters []*Cluster) bool {
	return !a.IsUnspecified() && !translated.Has(a) && !ranges.Lookup(a) &&
		!slices.ContainsFunc(clusters, func(c *Cluster) bool {
			return c.snapshot.Endpoint(a) != nil || c.nodes[a] != ""
		})
}

// clusterRanges returns the ranges of pods, where agents evaluate an unknown address as an unknown
// pod, and those of Services.
func clusterRanges(translated Translated, clusters []*Cluster) *bart.Lite {
	ranges := &bart.Lite{}
	if translated.ranges != nil {
		ranges.Union(translated.ranges)
	}
	for _, c := range clusters {
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			for _, p := range c.snapshot.Ranges(d) {
				ranges.Insert(p)
			}
		}
	}
	return ranges
}
