package steer

import (
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// setSpec describes a set. Sets of addresses exist once for each family.
type setSpec struct {
	name    string
	ipv6    bool
	ranges  bool   // the elements are prefixes, otherwise single addresses
	number  string // the type of a number concatenated to each address, empty if there is none
	keyType string // the type of a set of values other than addresses, empty for addresses
}

var setSpecs = func() []setSpec {
	var specs []setSpec
	for _, s := range []setSpec{
		{name: ingressSet}, {name: egressSet}, {name: hostSet}, {name: podsSet},
		{name: ingressRangesSet, ranges: true}, {name: egressRangesSet, ranges: true}, {name: hostRangesSet, ranges: true},
		{name: auditIngressSet}, {name: auditEgressSet}, {name: auditHostSet},
		{name: namesSet}, {name: resolversSet, number: "inet_service"},
		{name: staleSet}, {name: ownersSet, number: "mark"},
	} {
		for _, f := range families {
			s := s
			s.name, s.ipv6 = familyName(s.name, f.ipv6), f.ipv6
			specs = append(specs, s)
		}
	}
	return append(specs, valueSpecs...)
}()

const (
	ingressSet       = "ingress"
	egressSet        = "egress"
	hostSet          = "host"
	podsSet          = "pods"
	ingressRangesSet = "ingress-ranges"
	egressRangesSet  = "egress-ranges"
	hostRangesSet    = "host-ranges"
	namesSet         = "names"
	resolversSet     = "resolvers"
	staleSet         = "stale"
	staleFamiliesSet = "stale-families" // the families of the addresses in staleSet
	ownersSet        = "owners"         // for the next agent; no rule reads it
)

func familyName(set string, ipv6 bool) string {
	if ipv6 {
		return set + "-v6"
	}
	return set + "-v4"
}

// family is an address family with its fields in rules.
type family struct {
	rule.Family
	ipv6 bool
}

var families = []family{{rule.IPv4, false}, {rule.IPv6, true}}

// addresses are the source and the destination.
func (f family) addresses() []rule.Field { return []rule.Field{f.Saddr, f.Daddr} }

// forFamilies returns a rule for each family.
func forFamilies(ruleOf func(family) rule.Rule) []rule.Rule {
	var rules []rule.Rule
	for _, f := range families {
		rules = append(rules, ruleOf(f))
	}
	return rules
}

// set returns the name of a set of this family.
func (f family) set(name string) string { return familyName(name, f.ipv6) }

func (s setSpec) object() *knftables.Set {
	set := &knftables.Set{Name: s.name, Type: "ipv4_addr"}
	switch {
	case s.keyType != "":
		set.Type = s.keyType
	case s.ipv6:
		set.Type = "ipv6_addr"
	}
	if s.number != "" {
		set.Type += " . " + s.number
	}
	if s.ranges {
		set.Flags = []knftables.SetFlag{knftables.IntervalFlag}
	}
	return set
}

// tableSets are the sets of the table. Sets that packets update exist only if rules use them.
func tableSets(cfg Config) []*knftables.Set {
	var sets []*knftables.Set
	for _, spec := range setSpecs {
		sets = append(sets, spec.object())
	}
	sets = append(sets, holderObject())
	sets = append(sets, oneWaySets()...)
	sets = append(sets, renewedSets()...)
	sets = append(sets, overrideSets()...)
	for _, p := range cfg.parts() {
		if p.sets != nil {
			sets = append(sets, p.sets()...)
		}
	}
	return sets
}
