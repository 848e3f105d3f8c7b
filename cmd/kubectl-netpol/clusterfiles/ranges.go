package clusterfiles

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// family has the ranges for assumed addresses of one address family.
type family struct {
	is4 bool
	// preferred are ranges that clusters rarely use, in order of preference.
	preferred []netip.Prefix
	// fallback is the first of the ranges that are tried, one after the other, when all
	// preferred ones are in use.
	fallback netip.Prefix
}

var (
	ipv4 = family{
		is4: true,
		preferred: []netip.Prefix{
			netip.MustParsePrefix("198.18.0.0/15"), // benchmarks, RFC 2544
			netip.MustParsePrefix("240.0.0.0/4"),   // reserved, RFC 1112
			netip.MustParsePrefix("100.64.0.0/10"), // between providers and customers, RFC 6598
		},
		fallback: netip.MustParsePrefix("1.0.0.0/16"),
	}
	ipv6 = family{
		preferred: []netip.Prefix{
			netip.MustParsePrefix("2001:2::/48"),   // benchmarks, RFC 5180
			netip.MustParsePrefix("2001:db8::/32"), // documentation, RFC 3849
		},
		fallback: netip.MustParsePrefix("fd00::/64"),
	}
)

// free returns a range with room for n addresses that does not overlap any used range.
// Blocks of all addresses are ignored. If no range is free, larger blocks are ignored one
// prefix length after the other, so there is always a result: its addresses are all in the
// same few blocks.
func (f family) free(used []netip.Prefix, n int) netip.Prefix {
	for ignored := 0; ; ignored++ { // ignore prefixes of up to this many bits
		meets := func(p netip.Prefix) bool {
			return slices.ContainsFunc(used, func(u netip.Prefix) bool { return u.Bits() > ignored && u.Overlaps(p) })
		}
		for _, p := range f.preferred {
			if room(p) > n && !meets(p) {
				return p
			}
		}
		const maxTries = 1 << 10
		for i, p := 0, f.fallback; i < maxTries && p.IsValid(); i, p = i+1, next(p) {
			if room(p) > n && !meets(p) {
				return p
			}
		}
	}
}

// room returns the number of addresses in a range without its first, at most 2^24.
func room(p netip.Prefix) int {
	return 1<<min(24, p.Addr().BitLen()-p.Bits()) - 1
}

// next returns the range of the same size after p, or an invalid one at the end of the
// family.
func next(p netip.Prefix) netip.Prefix {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits() - 1; bit >= 0; bit-- {
		mask := byte(0x80 >> (bit % 8))
		bytes[bit/8] ^= mask
		if bytes[bit/8]&mask != 0 { // no carry
			addr, _ := netip.AddrFromSlice(bytes)
			return netip.PrefixFrom(addr, p.Bits())
		}
	}
	return netip.Prefix{}
}

// families returns the address families of pods, nodes and Services, or IPv4 if no object
// has an address.
func (c *Objects) families() []family {
	var has4, has6 bool
	for _, p := range slices.Concat(c.podRanges(), c.nodeRanges(), c.serviceRanges()) {
		if p.Addr().Is4() {
			has4 = true
		} else {
			has6 = true
		}
	}
	switch {
	case has4 && has6:
		return []family{ipv4, ipv6}
	case has6:
		return []family{ipv6}
	}
	return []family{ipv4}
}

// usedRanges returns all addresses and ranges of the objects and of the other policies.
func (c *Objects) usedRanges(otherPolicies []compile.Object) []netip.Prefix {
	used := slices.Concat(c.podRanges(), c.nodeRanges(), c.serviceRanges())
	for _, g := range c.CIDRGroups {
		used = append(used, compile.NewCIDRGroup(g).Prefixes...)
	}
	for _, o := range slices.Concat(c.Policies, otherPolicies) {
		p := compile.KindOf(o).Compile(o, compile.AllFeatures(), nil)
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			for _, r := range p.Rules(d) {
				for _, peer := range r.Peers {
					for _, b := range peer.Blocks {
						used = append(append(used, b.Prefix), b.Except...)
					}
				}
			}
		}
	}
	slices.SortFunc(used, netip.Prefix.Compare)
	return slices.Compact(used)
}

func (c *Objects) podRanges() []netip.Prefix {
	var used []netip.Prefix
	for _, p := range c.Pods {
		for _, a := range compile.Addresses(p) {
			used = append(used, single(a))
		}
	}
	return used
}

func (c *Objects) nodeRanges() []netip.Prefix {
	var used []netip.Prefix
	for _, n := range c.Nodes {
		node := compile.NewNode(n)
		used = append(used, node.PodRanges...)
		for _, a := range node.Addrs {
			used = append(used, single(a))
		}
	}
	return used
}

func (c *Objects) serviceRanges() []netip.Prefix {
	var used []netip.Prefix
	for _, s := range c.Services {
		ips := slices.Concat(s.Spec.ClusterIPs, []string{s.Spec.ClusterIP, s.Spec.LoadBalancerIP}, s.Spec.ExternalIPs, loadBalancer(s))
		for _, ip := range ips {
			if a, err := netip.ParseAddr(ip); err == nil { // not "None"
				used = append(used, single(a.Unmap().WithZone("")))
			}
		}
	}
	for _, c := range c.ServiceCIDRs {
		for _, text := range c.Spec.CIDRs {
			if r, err := netip.ParsePrefix(text); err == nil {
				used = append(used, r.Masked())
			}
		}
	}
	return used
}

func loadBalancer(s *corev1.Service) []string {
	var ips []string
	for _, i := range s.Status.LoadBalancer.Ingress {
		ips = append(ips, i.IP)
	}
	return ips
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
