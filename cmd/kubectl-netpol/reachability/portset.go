package reachability

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// PortSet is an immutable set of ports of all protocols. The zero PortSet is empty.
type PortSet struct {
	// ranges are in the order of protocols, ascending, with gaps between them. ICMP represents
	// all protocols without ports.
	ranges []PortRange
}

// protocols are the protocols of a PortSet, in its order.
var protocols = []packet.Proto{packet.TCP, packet.UDP, packet.SCTP, packet.ICMP}

// AllPorts returns the set of all ports of all protocols.
func AllPorts() PortSet {
	var all PortSet
	for _, p := range protocols {
		all.ranges = append(all.ranges, wholeRange(p))
	}
	return all
}

// wholeRange returns all ports of a protocol.
func wholeRange(p packet.Proto) PortRange {
	if !p.HasPorts() {
		return PortRange{Proto: p}
	}
	return PortRange{Proto: p, First: 1, Last: maxPort}
}

// NewPortSet returns the set of the ranges, which must not be named.
func NewPortSet(ranges ...PortRange) PortSet {
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b PortRange) int {
		return cmp.Or(slices.Index(protocols, a.Proto)-slices.Index(protocols, b.Proto), int(a.First)-int(b.First))
	})
	var s PortSet
	for _, r := range sorted {
		last := len(s.ranges) - 1
		if last < 0 || s.ranges[last].Proto != r.Proto || int(s.ranges[last].Last)+1 < int(r.First) {
			s.ranges = append(s.ranges, r)
			continue
		}
		s.ranges[last].Last = max(s.ranges[last].Last, r.Last)
	}
	return s
}

// Ranges returns the joined ranges of the set in order. The caller must not change them.
func (s PortSet) Ranges() []PortRange { return s.ranges }

// Empty reports whether the set has no port.
func (s PortSet) Empty() bool { return len(s.ranges) == 0 }

// All reports whether the set has all ports of all protocols.
func (s PortSet) All() bool { return slices.Equal(s.ranges, AllPorts().ranges) }

// Has reports whether the set contains a port. The number is zero for protocols without
// ports.
func (s PortSet) Has(proto packet.Proto, number uint16) bool {
	if !proto.HasPorts() {
		proto = packet.ICMP
	}
	return slices.ContainsFunc(s.ranges, func(r PortRange) bool {
		return r.Proto == proto && r.First <= number && number <= r.Last
	})
}

// Union returns the ports that are in s or o.
func (s PortSet) Union(o PortSet) PortSet { return NewPortSet(slices.Concat(s.ranges, o.ranges)...) }

// Intersect returns the ports that are in s and o.
func (s PortSet) Intersect(o PortSet) PortSet {
	var common []PortRange
	for _, a := range s.ranges {
		for _, b := range o.ranges {
			first, last := max(a.First, b.First), min(a.Last, b.Last)
			if a.Proto == b.Proto && first <= last {
				common = append(common, PortRange{Proto: a.Proto, First: first, Last: last})
			}
		}
	}
	return NewPortSet(common...)
}

// Without returns the ports of s that are not in o.
func (s PortSet) Without(o PortSet) PortSet { return s.Intersect(o.complement()) }

func (s PortSet) complement() PortSet {
	var out []PortRange
	for _, p := range protocols {
		next := 0 // the first port that may be missing
		whole := wholeRange(p)
		if p.HasPorts() {
			next = 1
		}
		for _, r := range s.ranges {
			if r.Proto != p {
				continue
			}
			if int(r.First) > next {
				out = append(out, PortRange{Proto: p, First: uint16(next), Last: r.First - 1})
			}
			next = int(r.Last) + 1
		}
		if next <= int(whole.Last) {
			out = append(out, PortRange{Proto: p, First: uint16(next), Last: whole.Last})
		}
	}
	return NewPortSet(out...)
}

// String returns "80,443/TCP 53/UDP", "TCP" for all ports of a protocol, "other" for the
// protocols without ports, "all" for everything, "all but 22/TCP" if that is shorter, and
// "" for the empty set.
func (s PortSet) String() string {
	if s.All() {
		return "all"
	}
	text := s.list()
	if but := "all but " + s.complement().list(); len(but) < len(text) {
		return but
	}
	return text
}

func (s PortSet) list() string {
	var parts []string
	for _, p := range protocols {
		var numbers []string
		for _, r := range s.ranges {
			if r.Proto == p {
				numbers = append(numbers, r.numbers())
			}
		}
		switch {
		case len(numbers) == 0:
		case numbers[0] == "":
			parts = append(parts, protocolName(p))
		default:
			parts = append(parts, strings.Join(numbers, ",")+"/"+protocolName(p))
		}
	}
	return strings.Join(parts, " ")
}

// Strings returns the ranges of the set one by one in the form of String, or "all".
func (s PortSet) Strings() []string {
	if s.All() {
		return []string{"all"}
	}
	names := make([]string, 0, len(s.ranges))
	for _, r := range s.ranges {
		names = append(names, PortSet{[]PortRange{r}}.list())
	}
	return names
}

// numbers returns "80" or "80-90", and "" for all ports of a protocol.
func (s PortRange) numbers() string {
	switch {
	case s == wholeRange(s.Proto):
		return ""
	case s.First == s.Last:
		return fmt.Sprint(s.First)
	}
	return fmt.Sprintf("%d-%d", s.First, s.Last)
}

func protocolName(p packet.Proto) string {
	if p.HasPorts() {
		return p.String()
	}
	return "other"
}

// portSets gives each set a number, so that sets can be compared and intersected by number.
type portSets struct {
	all   []PortSet
	index map[string]int32
	pairs map[[2]int32]int32 // intersections
	sums  map[[2]int32]int32 // unions
}

// The numbers of the empty set and of the set of all ports.
const (
	noPorts int32 = iota
	allPorts
)

func newPortSets() portSets {
	s := portSets{index: map[string]int32{}, pairs: map[[2]int32]int32{}, sums: map[[2]int32]int32{}}
	s.place(PortSet{})
	s.place(AllPorts())
	return s
}

func (p *portSets) place(s PortSet) int32 {
	var key strings.Builder
	for _, r := range s.ranges {
		key.Write([]byte{byte(r.Proto), byte(r.First >> 8), byte(r.First), byte(r.Last >> 8), byte(r.Last)})
	}
	if number, known := p.index[key.String()]; known {
		return number
	}
	number := int32(len(p.all))
	p.index[key.String()] = number
	p.all = append(p.all, s)
	return number
}

func (p *portSets) intersect(a, b int32) int32 {
	switch {
	case a == b || b == allPorts:
		return a
	case a == allPorts:
		return b
	case a == noPorts || b == noPorts:
		return noPorts
	}
	return p.combine(p.pairs, a, b, PortSet.Intersect)
}

func (p *portSets) union(a, b int32) int32 {
	switch {
	case a == b || b == noPorts:
		return a
	case a == noPorts:
		return b
	case a == allPorts || b == allPorts:
		return allPorts
	}
	return p.combine(p.sums, a, b, PortSet.Union)
}

func (p *portSets) combine(known map[[2]int32]int32, a, b int32, operation func(a, b PortSet) PortSet) int32 {
	key := [2]int32{min(a, b), max(a, b)}
	set, ok := known[key]
	if !ok {
		set = p.place(operation(p.all[a], p.all[b]))
		known[key] = set
	}
	return set
}
