package steer

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// Sets is a wish: the addresses to steer, of both families. IPv4 addresses
// mapped into IPv6 are taken as IPv4, zones are cut off, and addresses and
// prefixes that are not valid are passed over, as are resolvers without a port and
// owners without a pod.
type Sets struct {
	// Ingress and Egress are the local pods isolated in that direction.
	Ingress, Egress []netip.Addr
	// ToHost are the local pods whose packets to this node itself are steered.
	ToHost []netip.Addr
	// Pods is every live local pod address known. It only matters while anything is
	// steered: within the ranges, and for shares.
	Pods []netip.Addr
	// IngressRanges and EgressRanges are the ranges of the node's pods. An
	// address in them that is not in Pods is steered too, so that a pod too new
	// to be known does not slip through.
	IngressRanges, EgressRanges []netip.Prefix
	// Names are the local pods of which the observer sees what they exchange
	// with Resolvers, by TCP and UDP. Without an observer both are idle.
	Names     []netip.Addr
	Resolvers []netip.AddrPort
	// Stale are addresses whose connections may be those of a pod that had the
	// address before: all that they send and receive is steered.
	Stale []netip.Addr
	// Owners are the pods whose connections the kernel may track under an address.
	// They are kept for the next agent, see Steerer.Owners.
	Owners []Owner
	// CheckSources drops what has a source address that is reached by another
	// interface than the one it came in by. Without Config.SourceCheck it is idle.
	CheckSources bool
	// Unchecked are the names of the interfaces that are exempt from it. A name
	// that nft would not read as it is meant is passed over.
	Unchecked []string
	// TunnelPorts are UDP ports, and TunnelProtocols protocols, that pods do not
	// send to this node itself. They are idle without CheckSources, and by the
	// interfaces of Unchecked.
	TunnelPorts     []uint16
	TunnelProtocols []uint8
	// Serial is given to Config.InForce once the wish is in force.
	Serial uint64
	// Since is when the oldest change in this wish was seen. The zero value
	// keeps it out of the latency histogram.
	Since time.Time
}

// equal tells whether s and o are the same addresses in the same order.
func (s Sets) equal(o Sets) bool {
	return slices.Equal(s.Ingress, o.Ingress) && slices.Equal(s.Egress, o.Egress) &&
		slices.Equal(s.ToHost, o.ToHost) && slices.Equal(s.Pods, o.Pods) &&
		slices.Equal(s.IngressRanges, o.IngressRanges) && slices.Equal(s.EgressRanges, o.EgressRanges) &&
		slices.Equal(s.Names, o.Names) && slices.Equal(s.Resolvers, o.Resolvers) &&
		slices.Equal(s.Stale, o.Stale) && slices.Equal(s.Owners, o.Owners) && s.Serial == o.Serial &&
		s.CheckSources == o.CheckSources && slices.Equal(s.Unchecked, o.Unchecked) &&
		slices.Equal(s.TunnelPorts, o.TunnelPorts) && slices.Equal(s.TunnelProtocols, o.TunnelProtocols)
}

// element of a set. A single address is a prefix of full length.
type element struct {
	prefix netip.Prefix
	with   uint32 // of resolvers the port, of owners the pod, else 0
	word   string // of a set without addresses, as nft reads it
}

// elements of one set.
type elements map[element]struct{}

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
	c.addAddrs(hostSet, s.ToHost)
	c.addPrefixes(ingressRangesSet, s.IngressRanges)
	c.addPrefixes(egressRangesSet, s.EgressRanges)
	if len(s.Ingress)+len(s.Egress)+len(s.ToHost)+len(s.IngressRanges)+len(s.EgressRanges) > 0 {
		c.addAddrs(podsSet, s.Pods)
	}
	c.addAddrs(namesSet, s.Names)
	for _, r := range s.Resolvers {
		if r.Port() == 0 {
			continue
		}
		c.addAddr(resolversSet, r.Addr(), uint32(r.Port()))
	}
	c.addAddrs(staleSet, s.Stale)
	for _, o := range s.Owners {
		if o.Pod == 0 {
			continue
		}
		c.addAddr(ownersSet, o.Addr, o.Pod)
	}
	c.addSources(s)
	c.addTunnels(s)
	return c
}

func (c contents) addAddrs(set string, addrs []netip.Addr) {
	for _, a := range addrs {
		c.addAddr(set, a, 0)
	}
}

func (c contents) addAddr(set string, a netip.Addr, with uint32) {
	if a = a.Unmap().WithZone(""); a.IsValid() {
		c[familyName(set, a.Is6())][element{prefix: netip.PrefixFrom(a, a.BitLen()), with: with}] = struct{}{}
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
		c[familyName(set, p.Addr().Is6())][element{prefix: p}] = struct{}{}
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

// without returns the elements that o has not, in the same order each time.
func (e elements) without(o elements) []element {
	var missing []element
	for x := range e {
		if _, ok := o[x]; !ok {
			missing = append(missing, x)
		}
	}
	slices.SortFunc(missing, func(a, b element) int {
		return cmp.Or(comparePrefix(a.prefix, b.prefix), cmp.Compare(a.with, b.with), cmp.Compare(a.word, b.word))
	})
	return missing
}

// key is e as nft writes it.
func (e element) key() []string {
	if e.word != "" {
		return []string{e.word}
	}
	key := []string{e.prefix.String()}
	if e.prefix.IsSingleIP() {
		key[0] = e.prefix.Addr().String()
	}
	if e.with != 0 {
		key = append(key, strconv.FormatUint(uint64(e.with), 10))
	}
	return key
}

// parse reads what key and nft write.
func (s setSpec) parse(key []string) (element, bool) {
	if s.words != "" && len(key) == 1 {
		return s.word(key[0]), true
	}
	return parseElement(key)
}

// parseElement reads an address.
func parseElement(key []string) (e element, ok bool) {
	switch len(key) {
	case 1:
	case 2:
		with, err := strconv.ParseUint(key[1], 0, 32)
		if err != nil {
			return element{}, false
		}
		e.with = uint32(with)
	default:
		return element{}, false
	}
	if a, err := netip.ParseAddr(key[0]); err == nil {
		e.prefix = netip.PrefixFrom(a, a.BitLen())
		return e, true
	}
	var err error
	e.prefix, err = netip.ParsePrefix(key[0])
	return e, err == nil
}
