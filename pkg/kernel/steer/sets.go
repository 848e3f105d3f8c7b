package steer

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// Sets is the desired state: the addresses to steer, of both families. IPv4-mapped IPv6 addresses are
// converted to IPv4 and zones are removed. Invalid addresses and prefixes, servers without a port
// and owners without a pod are ignored.
type Sets struct {
	// Ingress and Egress are the local pods isolated in that direction.
	Ingress, Egress []netip.Addr
	// ToHost are the local pods whose packets to the node itself are steered.
	ToHost []netip.Addr
	// Pods are the addresses of all known local pods. Ranges and shares need them, so they are in
	// the table only while anything is steered.
	Pods []netip.Addr
	// IngressRanges and EgressRanges are the address ranges of the node's pods. An address in
	// them that is not in Pods is steered, too, because it may belong to a pod that is not yet
	// known. ToHostRanges are the same for packets to the node itself.
	IngressRanges, EgressRanges, ToHostRanges []netip.Prefix
	// AuditIngress, AuditEgress and AuditToHost are the local pods that only audited policies
	// select. Their packets go to the audit queue unless another set steers them.
	AuditIngress, AuditEgress, AuditToHost []netip.Addr
	// Answered are the local pods whose denied packets are answered. They are ignored without
	// Config.BlockMark, and on kernels that cannot answer, see Capabilities.Answers. The table keeps
	// its chains for answers once it has them, because removing base chains drops queued packets.
	Answered []netip.Addr
	// Observed are the local pods whose TCP and UDP packets to and from Servers are shown to the
	// observer. Both are ignored if there is no observer.
	Observed []netip.Addr
	Servers  []netip.AddrPort
	// Stale are addresses whose connections may belong to a pod that had the address before.
	// All their packets are steered.
	Stale []netip.Addr
	// Owners are the pods whose connections the kernel may track under an address.
	// They are stored for the next agent, see Steerer.Owners.
	Owners []Owner
	// CheckSources drops packets that do not arrive on the interface of the route to their
	// source. It is ignored without Config.SourceCheck.
	CheckSources bool
	// Unchecked are the names of the interfaces that are exempt from CheckSources.
	Unchecked []string
	// Forwards are the sources of packets that pods may forward. Those after the first
	// MaxForwards are ignored, as are all without CheckSources.
	Forwards []Forward
	// Bridges are the names of bridges. Between their ports, packets from or to addresses that
	// belong to no pod are dropped: link-local, multicast and broadcast addresses. They are
	// ignored without CheckSources.
	Bridges []string
	// HostLinks are the names of the interfaces that lead to pods in ToHost. Packets that arrive
	// on them for the node itself are steered, too, if their source is not in Pods. They are
	// ignored without CheckSources.
	HostLinks []string
	// IngressLinks and EgressLinks are the names of the interfaces that lead to a single pod, which is
	// isolated in that direction. Packets on them are the pod's, whatever the addresses.
	// MulticastLinks are those that lead to a pod isolated in ingress, also among others. They are
	// ignored without CheckSources.
	IngressLinks, EgressLinks, MulticastLinks []string
	// TunnelPorts are the UDP ports, and TunnelProtocols the protocols, of packets to the node
	// itself that pods must not send. They are ignored without CheckSources and for packets that
	// arrive on interfaces in Unchecked.
	TunnelPorts     []uint16
	TunnelProtocols []uint8
	// Serial is passed to Config.Applied when these sets are applied.
	Serial uint64
	// Since is when the oldest change in these sets was observed. If it is zero, the latency
	// histogram does not include them.
	Since time.Time
}

// equal reports whether s and o have the same contents in the same order, regardless of Since.
// TestEqualComparesEveryField finds forgotten fields.
func (s Sets) equal(o Sets) bool {
	return s.Serial == o.Serial && s.steersLike(o) && s.auditsLike(o) && s.checksLike(o) &&
		slices.Equal(s.Answered, o.Answered) && slices.Equal(s.Observed, o.Observed) && slices.Equal(s.Servers, o.Servers) &&
		slices.Equal(s.Stale, o.Stale) && slices.Equal(s.Owners, o.Owners)
}

func (s Sets) steersLike(o Sets) bool {
	return slices.Equal(s.Ingress, o.Ingress) && slices.Equal(s.Egress, o.Egress) &&
		slices.Equal(s.ToHost, o.ToHost) && slices.Equal(s.Pods, o.Pods) &&
		slices.Equal(s.IngressRanges, o.IngressRanges) && slices.Equal(s.EgressRanges, o.EgressRanges) &&
		slices.Equal(s.ToHostRanges, o.ToHostRanges)
}

func (s Sets) auditsLike(o Sets) bool {
	return slices.Equal(s.AuditIngress, o.AuditIngress) && slices.Equal(s.AuditEgress, o.AuditEgress) &&
		slices.Equal(s.AuditToHost, o.AuditToHost)
}

// checksLike compares what is checked of sources and tunnels.
func (s Sets) checksLike(o Sets) bool {
	return s.CheckSources == o.CheckSources && slices.Equal(s.Unchecked, o.Unchecked) &&
		slices.Equal(s.Bridges, o.Bridges) && slices.Equal(s.HostLinks, o.HostLinks) &&
		slices.Equal(s.IngressLinks, o.IngressLinks) && slices.Equal(s.EgressLinks, o.EgressLinks) && slices.Equal(s.MulticastLinks, o.MulticastLinks) &&
		slices.EqualFunc(s.Forwards, o.Forwards, Forward.equal) &&
		slices.Equal(s.TunnelPorts, o.TunnelPorts) && slices.Equal(s.TunnelProtocols, o.TunnelProtocols)
}

// element is an element of a set. A single address is a prefix of full length.
type element struct {
	prefix netip.Prefix
	number uint32 // the port of a server or the pod of an owner, otherwise 0
	value  string // in a set of values other than addresses, as nft writes it
}

// elements are the elements of one set.
type elements map[element]struct{}

// contents are the elements of all sets, by name of the set.
type contents map[string]elements

// contents returns the contents of the table's sets, with an entry for every set. Those for answers have
// entries only if they are needed.
func (s Sets) contents() contents {
	cfg := Config{answers: len(s.Answered) > 0}
	c := contents{}.fit(cfg.specs())
	// A stale address is steered in both directions, because a reply cannot be distinguished
	// from a first packet.
	c.addAddrs(ingressSet, slices.Concat(s.Ingress, s.Stale))
	c.addAddrs(egressSet, slices.Concat(s.Egress, s.Stale))
	c.addAddrs(hostSet, s.ToHost)
	c.addPrefixes(ingressRangesSet, s.IngressRanges)
	c.addPrefixes(egressRangesSet, s.EgressRanges)
	c.addPrefixes(hostRangesSet, s.ToHostRanges)
	if len(s.Ingress)+len(s.Egress)+len(s.ToHost)+len(s.IngressRanges)+len(s.EgressRanges)+len(s.ToHostRanges) > 0 {
		c.addAddrs(podsSet, s.Pods)
	}
	c.addAddrs(auditIngressSet, s.AuditIngress)
	c.addAddrs(auditEgressSet, s.AuditEgress)
	c.addAddrs(auditHostSet, s.AuditToHost)
	c.addAddrs(answeredSet, s.Answered)
	c.addAddrs(namesSet, s.Observed)
	for _, r := range s.Servers {
		if r.Port() == 0 {
			continue
		}
		c.addAddr(resolversSet, r.Addr(), uint32(r.Port()))
	}
	c.addStale(s.Stale)
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

// addStale adds addresses and their families, so that packets of a family without stale addresses
// need not be looked up.
func (c contents) addStale(addrs []netip.Addr) {
	c.addAddrs(staleSet, addrs)
	for _, f := range families {
		if len(c[familyName(staleSet, f.ipv6)]) > 0 {
			c[staleFamiliesSet][element{value: f.protocol()}] = struct{}{}
		}
	}
}

func (c contents) addAddr(set string, a netip.Addr, number uint32) {
	if a = a.Unmap().WithZone(""); a.IsValid() {
		c[familyName(set, a.Is6())][element{prefix: netip.PrefixFrom(a, a.BitLen()), number: number}] = struct{}{}
	}
}

// addPrefixes omits prefixes within other prefixes, because the intervals of a set must not overlap.
func (c contents) addPrefixes(set string, prefixes []netip.Prefix) {
	normal := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p = normalPrefix(p); p.IsValid() {
			normal = append(normal, p)
		}
	}
	slices.SortFunc(normal, netip.Prefix.Compare) // wider prefixes first
	var last netip.Prefix
	for _, p := range normal {
		if last.IsValid() && last.Contains(p.Addr()) {
			continue
		}
		last = p
		c[familyName(set, p.Addr().Is6())][element{prefix: p}] = struct{}{}
	}
}

// normalPrefix masks p, and converts an IPv4-mapped prefix to IPv4.
func normalPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

// without returns the elements that o lacks, in a fixed order.
func (e elements) without(o elements) []element {
	var missing []element
	for x := range e {
		if _, ok := o[x]; !ok {
			missing = append(missing, x)
		}
	}
	slices.SortFunc(missing, func(a, b element) int {
		return cmp.Or(a.prefix.Compare(b.prefix), cmp.Compare(a.number, b.number), cmp.Compare(a.value, b.value))
	})
	return missing
}

// key returns e as nft writes it.
func (e element) key() []string {
	if e.value != "" {
		return []string{e.value}
	}
	key := []string{e.prefix.String()}
	if e.prefix.IsSingleIP() {
		key[0] = e.prefix.Addr().String()
	}
	if e.number != 0 {
		key = append(key, strconv.FormatUint(uint64(e.number), 10))
	}
	return key
}
