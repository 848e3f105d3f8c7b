package policy

import (
	"net/netip"
	"slices"
	"strings"
)

// scope is which of the names that a pod has learned match an address. Whoever owns a domain
// chooses the addresses of its names, and may choose another tenant's pod, a node or its metadata
// service. So names match peers outside of the cluster only; rules select what is inside as pods,
// nodes or networks.
type scope uint8

const (
	noNames      scope = iota // the address is special
	clusterNames              // a pod or a node has the address: only names of Services match
	allNames
)

// serviceNames is the domain of the cluster's Services. Names below local are not delegated to any
// owner (RFC 6762, section 3), so this is safe even in clusters with a different domain. Names
// below pod.cluster.local do not count: resolvers answer a query for
// 192-0-2-1.NAMESPACE.pod.cluster.local with the address in the name, so the querying pod chooses
// the address.
const serviceNames = "svc.cluster.local"

// has reports whether name may match addresses of this scope.
func (s scope) has(name string) bool {
	return s == allNames || s == clusterNames && strings.HasSuffix(name, "."+serviceNames)
}

// mayHave reports whether some name in domains may match addresses of this scope.
func (s scope) mayHave(domains []Domain) bool {
	return slices.ContainsFunc(domains, func(d Domain) bool { return slices.ContainsFunc(d.Examples(), s.has) })
}

// Examples returns names that d matches: where d covers both, one of a Service and one of another
// kind.
func (d Domain) Examples() []string {
	switch {
	case !d.Below:
		return []string{d.Name}
	case strings.HasSuffix("."+serviceNames, "."+d.Name):
		return []string{"any." + d.Name, "any." + serviceNames}
	}
	return []string{"any." + d.Name}
}

// scopeOf returns the scope of a. own means that a belongs to the evaluating node itself.
func (s *Snapshot) scopeOf(a netip.Addr, own bool) scope {
	v4, translated := translatedTo(a)
	switch {
	case isSpecial(a), translated && isSpecial(v4):
		return noNames
	case own, s.isInside(a), translated && s.isInside(v4):
		return clusterNames
	}
	return allNames
}

// isInside reports whether a is the address of a pod or of a node. An address in a pod range counts
// as that of an unknown pod.
func (s *Snapshot) isInside(a netip.Addr) bool {
	return s.m.Endpoints.At(a) != nil || s.m.Hosts[a] != nil || s.m.PodRanges.contain(a) || s.inRanges(a)
}

// isSpecial reports whether a DNS name never legitimately stands for a: addresses with a meaning
// only on one machine or link, multicast addresses, and metadata services.
func isSpecial(a netip.Addr) bool {
	return a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() ||
		slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(a) })
}

// special are the special addresses that package netip does not recognise. Most metadata services
// have link-local addresses such as 169.254.169.254.
var special = prefixes(
	"0.0.0.0/8",          // this host on this network (RFC 1122, section 3.2.1.3)
	"::/128",             // the same (RFC 4291, section 2.5.2)
	"255.255.255.255/32", // limited broadcast (RFC 919)

	"fd00:ec2::/32",          // Amazon: metadata ::254 (EC2 user guide, "Access instance metadata"), credentials of pods ::23 (EKS user guide, "EKS Pod Identity Agent")
	"fd20:ce::254/128",       // Google (Compute Engine documentation, "About VM metadata")
	"168.63.129.16/32",       // Azure (learn.microsoft.com, "What is IP address 168.63.129.16?")
	"fd00:c1::a9fe:a9fe/128", // Oracle (OCI documentation, "Getting Instance Metadata")
	"192.0.0.192/32",         // Oracle (Cloud Infrastructure Classic, "Retrieving Instance Metadata")
	"100.100.100.200/32",     // Alibaba (ECS documentation, "View instance metadata")
	"fd00:100::100:200/128",  // Alibaba, the same
	"fd00:a9fe:a9fe::1/128",  // Akamai (cloud-init, datasource Akamai)
	"fd00:42::42/128",        // Scaleway (cloud-init, datasource Scaleway)
)

// translators are prefixes of IPv6 addresses that routers translate to the IPv4 address embedded at
// a byte offset. Mapped addresses (::ffff:0:0/96) are missing because parsing has already made them
// IPv4, in packets and in DNS answers.
var translators = []struct {
	prefix netip.Prefix
	offset int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},    // NAT64 (RFC 6052, section 2.1)
	{netip.MustParsePrefix("64:ff9b:1::/96"), 12},  // local-use NAT64 (RFC 8215), its usual prefix
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // SIIT (RFC 2765, section 2.1)
	{netip.MustParsePrefix("::/96"), 12},           // IPv4-compatible (RFC 4291, section 2.5.5.1)
	{netip.MustParsePrefix("2002::/16"), 2},        // 6to4 (RFC 3056, section 2)
}

// translatedTo returns the IPv4 address that is embedded in a.
func translatedTo(a netip.Addr) (v4 netip.Addr, ok bool) {
	if a.Is4() {
		return netip.Addr{}, false
	}
	for _, t := range translators {
		if t.prefix.Contains(a) {
			b := a.As16()
			return netip.AddrFrom4([4]byte(b[t.offset : t.offset+4])), true
		}
	}
	return netip.Addr{}, false
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// NamesRefused reports whether s, which denies q in egress, would allow it if the names that the
// source has learned for the destination matched any address. It is for logs and costs as much as
// the decision.
func (s *Snapshot) NamesRefused(q Query) bool {
	var src, dst end
	s.ends(&q, &src, &dst)
	if q.Learned == nil || src.endpoint == nil || src.endpoint.Egress == nil {
		return false
	}
	var f flow
	var m match
	s.fill(&f, Egress, &q, &src, &dst)
	if f.names == nil || f.scope == allNames {
		return false
	}
	f.scope = allNames
	x := src.endpoint.Egress.prepare()
	return x.match(&f, &m) && !x.decide(&f, &m).denies()
}
