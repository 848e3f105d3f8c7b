package steer

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Sets is a wish: the addresses to steer, of both families. IPv4 addresses
// mapped into IPv6 are taken as IPv4, zones are cut off, and addresses and
// prefixes that are not valid are passed over.
type Sets struct {
	// Ingress and Egress are the local pods isolated in that direction.
	Ingress, Egress []netip.Addr
	// Pods is every live local pod address known. It only matters within the
	// ranges.
	Pods []netip.Addr
	// IngressRanges and EgressRanges are the ranges of the node's pods. An
	// address in them that is not in Pods is steered too, so that a pod too new
	// to be known does not slip through.
	IngressRanges, EgressRanges []netip.Prefix
	// Since is when the oldest change in this wish was seen. The zero value
	// keeps it out of the latency histogram.
	Since time.Time
}

// elements of one set; a single address is a prefix of full length.
type elements map[netip.Prefix]struct{}

// contents are the elements of each set, by its name.
type contents map[string]elements

// contents sorts s into the sets of the table. Every set has an entry.
func (s Sets) contents() contents {
	c := make(contents, len(setSpecs))
	for _, spec := range setSpecs {
		c[spec.name] = elements{}
	}
	c.addAddrs(ingressSet, s.Ingress)
	c.addAddrs(egressSet, s.Egress)
	c.addPrefixes(ingressRangesSet, s.IngressRanges)
	c.addPrefixes(egressRangesSet, s.EgressRanges)
	if len(s.IngressRanges)+len(s.EgressRanges) > 0 {
		c.addAddrs(podsSet, s.Pods)
	}
	return c
}

func (c contents) addAddrs(set string, addrs []netip.Addr) {
	for _, a := range addrs {
		if a = a.Unmap().WithZone(""); a.IsValid() {
			c[familyName(set, a.Is6())][netip.PrefixFrom(a, a.BitLen())] = struct{}{}
		}
	}
}

// addPrefixes leaves out prefixes that lie in another one: the intervals of a
// set must not overlap.
func (c contents) addPrefixes(set string, prefixes []netip.Prefix) {
	normal := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p = normalPrefix(p); p.IsValid() {
			normal = append(normal, p)
		}
	}
	slices.SortFunc(normal, comparePrefix) // the wider one first
	var last netip.Prefix
	for _, p := range normal {
		if last.IsValid() && last.Contains(p.Addr()) {
			continue
		}
		last = p
		c[familyName(set, p.Addr().Is6())][p] = struct{}{}
	}
}

// normalPrefix has no bits beyond its length set and is of the family it means.
func normalPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// sorted makes transactions the same for the same wish.
func (e elements) sorted() []netip.Prefix {
	return slices.SortedFunc(maps.Keys(e), comparePrefix)
}

// elementKey is p as nft writes it.
func elementKey(p netip.Prefix) []string {
	if p.IsSingleIP() {
		return []string{p.Addr().String()}
	}
	return []string{p.String()}
}

// parseElement reads what elementKey and nft write.
func parseElement(key []string) (netip.Prefix, bool) {
	if len(key) != 1 {
		return netip.Prefix{}, false
	}
	if a, err := netip.ParseAddr(key[0]); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(key[0])
	return p, err == nil
}
