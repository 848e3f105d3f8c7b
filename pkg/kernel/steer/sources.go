package steer

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// Names of the objects that check the sources of packets.
const (
	sourcesChain       = "prerouting-sources"
	forgedSourcesChain = "forged-sources"
	checkedSet         = "checked"
	uncheckedSet       = "unchecked"

	forgedSourcesCounter = "forged-sources"

	forwardedChain      = "forwarded"
	forwardersSet       = "forwarders"        // one for each Forward, see numbered
	forwardedSourcesSet = "forwarded-sources" // likewise
)

// MaxForwards is how many different lists of sources the pods of one node may forward. Each has its
// own sets, so that the interfaces of one list cannot use the sources of another.
const MaxForwards = 4

// Forward lists sources of packets that some pods may forward.
type Forward struct {
	// Links are the names of the interfaces that lead to these pods and to no other ones.
	Links   []string
	Sources []netip.Prefix
}

func (f Forward) equal(o Forward) bool {
	return slices.Equal(f.Links, o.Links) && slices.Equal(f.Sources, o.Sources)
}

// valueSpecs are the sets whose elements are not addresses.
var valueSpecs = append([]setSpec{
	staleFamiliesSpec,
	{name: checkedSet, keyType: "nf_proto"},
	uncheckedSpec,
	bridgesSpec,
	hostLinksSpec,
	{name: tunnelPortsSet, keyType: "inet_service"},
	{name: tunnelProtocolsSet, keyType: "inet_proto"},
}, append(linkSpecs, forwardSpecs()...)...)

// forwardSpecs are the sets of each Forward.
func forwardSpecs() []setSpec {
	var specs []setSpec
	for i := range MaxForwards {
		specs = append(specs, forwardersSpec(i))
		for _, f := range families {
			specs = append(specs, setSpec{name: familyName(numbered(forwardedSourcesSet, i), f.ipv6), ipv6: f.ipv6, ranges: true})
		}
	}
	return specs
}

func forwardersSpec(i int) setSpec {
	return setSpec{name: numbered(forwardersSet, i), keyType: "ifname"}
}

// numbered returns the name of a set of Forward i.
func numbered(set string, i int) string { return fmt.Sprintf("%s-%d", set, i+1) }

var (
	staleFamiliesSpec = setSpec{name: staleFamiliesSet, keyType: "nf_proto"}
	uncheckedSpec     = setSpec{name: uncheckedSet, keyType: "ifname"}
	bridgesSpec       = setSpec{name: bridgesSet, keyType: "ifname"}
	hostLinksSpec     = setSpec{name: hostLinksSet, keyType: "ifname"}
)

// ofChecked matches packets of the families whose sources are checked.
var ofChecked = rule.NFProto.In(checkedSet)

// checkChains are the chains of Config.SourceCheck.
func checkChains(cfg Config) []chain {
	return slices.Concat(sourceChains(), bridgedChains(cfg), tunnelChains(cfg))
}

// sourceChains drop packets that arrive on an interface that leads to a pod or is not yet known, if
// the route to their source is through another interface. They run before connection tracking, so
// that a forged packet does not create a conntrack entry or match that of another pod.
func sourceChains() []chain {
	return []chain{
		{name: forwardedChain, rules: forwardedRules()},
		{name: forgedSourcesChain, rules: forgedSourcesRules()},
		{
			name:     sourcesChain,
			hook:     knftables.PreroutingHook,
			priority: knftables.RawPriority,
			rules:    sourceRules(),
		},
	}
}

// sourceRules do not drop packets for which fib always finds a route: those on the loopback
// interface, those from 0.0.0.0 to broadcast and multicast addresses (DHCP, IGMP), and those with a
// link-local source if the interface has a link-local address.
func sourceRules() []rule.Rule {
	return []rule.Rule{{ofChecked, rule.IIFName.NotIn(uncheckedSet), noWayBack, rule.Goto(forgedSourcesChain)}}
}

func forgedSourcesRules() []rule.Rule {
	return []rule.Rule{
		// Duplicate address detection and multicast listener discovery. Routers do not forward
		// packets from ::. Newer kernels find a route for them.
		{rule.IPv6.Saddr.Is(unspecified6), rule.L4Proto.Is(rule.ICMPv6), rule.Accept},
		{rule.Jump(forwardedChain)},
		{rule.Counter(forgedSourcesCounter), rule.Drop},
	}
}

// forwardedRules accept packets that pods may forward. The node's own addresses are excluded first,
// because the kernel accepts its IPv6 addresses as sources of packets from outside.
func forwardedRules() []rule.Rule {
	rules := []rule.Rule{{fromOwnNode, rule.Return}}
	for i := range MaxForwards {
		for _, f := range families {
			rules = append(rules, rule.Rule{rule.IIFName.In(numbered(forwardersSet, i)), f.Saddr.In(f.set(numbered(forwardedSourcesSet, i))), rule.Accept})
		}
	}
	return rules
}

// tableCounters are the names of the table's counters.
var tableCounters = []string{steeredCounter, untrackedCounter, auditCounter, forgedSourcesCounter, tunnelsCounter, linksCounter, copiedMarksCounter}

// addSources adds the contents of the sets for the source check.
func (c contents) addSources(s Sets) {
	if !s.CheckSources {
		return
	}
	for _, protocol := range protocols {
		c[checkedSet][element{value: protocol}] = struct{}{}
	}
	c.addNames(uncheckedSpec, s.Unchecked)
	c.addNames(bridgesSpec, s.Bridges)
	c.addLinks(s)
	for i, f := range s.Forwards[:min(len(s.Forwards), MaxForwards)] {
		c.addNames(forwardersSpec(i), f.Links)
		c.addPrefixes(numbered(forwardedSourcesSet, i), f.Sources)
	}
}

// addNames omits names that no interface can have, because the kernel would refuse the whole
// transaction.
func (c contents) addNames(spec setSpec, names []string) {
	for _, name := range names {
		if name != "" && len(name) < unix.IFNAMSIZ {
			c[spec.name][element{value: name}] = struct{}{}
		}
	}
}

// protocols are the names of elements of type nf_proto.
var protocols = map[byte]string{unix.NFPROTO_IPV4: "ipv4", unix.NFPROTO_IPV6: "ipv6"}

// protocol returns the name of the family as an element of type nf_proto.
func (f family) protocol() string {
	if f.ipv6 {
		return protocols[unix.NFPROTO_IPV6]
	}
	return protocols[unix.NFPROTO_IPV4]
}

// decodeValue decodes an element as the kernel lists it.
func (s setSpec) decodeValue(k setKey) (element, bool) {
	switch {
	case k.flags != 0:
		return element{}, false
	case s.keyType == "ifname":
		return element{value: nlattr.Text(k.bytes)}, true
	case len(k.bytes) == 0:
		return element{}, false
	}
	if s.keyType != "nf_proto" {
		return element{value: strconv.FormatUint(nlattr.Number(k.bytes), 10)}, true
	}
	protocol, ok := protocols[k.bytes[0]]
	return element{value: protocol}, ok
}
