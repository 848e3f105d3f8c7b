package reachability

import (
	"fmt"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// PortRange is a range of a protocol's ports that no policy distinguishes. ICMP, which no
// rule can name, represents all protocols that no rule names.
type PortRange struct {
	Proto       packet.Proto
	Name        string // a named port instead of numbers
	First, Last uint16 // zero for ICMP and for a named port
}

// PortRangeOf returns the range that contains only p.
func PortRangeOf(p Port) PortRange { return PortRange{p.Proto, p.Name, p.Number, p.Number} }

// Port returns the port that represents the range.
func (s PortRange) Port() Port { return Port{Proto: s.Proto, Name: s.Name, Number: s.First} }

// String returns "TCP 80", "TCP 1-79", "TCP, every port", or the protocols that ICMP
// represents.
func (s PortRange) String() string {
	switch {
	case !s.Proto.HasPorts():
		return "ICMP and every other protocol"
	case s.Name != "":
		return fmt.Sprintf("%v %s", s.Proto, s.Name)
	case s.First == 1 && s.Last == maxPort:
		return fmt.Sprintf("%v, every port", s.Proto)
	case s.First == s.Last:
		return fmt.Sprintf("%v %d", s.Proto, s.First)
	}
	return fmt.Sprintf("%v %d-%d", s.Proto, s.First, s.Last)
}

// MarshalText renders the range like String.
func (s PortRange) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// JoinPortRanges joins adjacent ranges.
func JoinPortRanges(spans []PortRange) []PortRange {
	var joined []PortRange
	for _, s := range spans {
		if i := len(joined) - 1; i >= 0 && s.Name == "" && joined[i].Name == "" && joined[i].Proto == s.Proto && int(joined[i].Last)+1 == int(s.First) {
			joined[i].Last = s.Last
			continue
		}
		joined = append(joined, s)
	}
	return joined
}

// PortRanges divides all traffic into ranges that no rule of the clusters and no port of
// their pods distinguishes, so that one port represents each range. TCP is always divided,
// UDP and SCTP if a rule names them.
func PortRanges(clusters ...*Cluster) []PortRange {
	cuts := map[packet.Proto][]int{packet.TCP: {1}} // the first ports of ranges
	cut := func(proto packet.Proto, first, last uint16) {
		cuts[proto] = append(cuts[proto], 1, max(1, int(first)), int(last)+1)
	}
	names := map[policy.NamedPort]bool{} // without a number
	for _, c := range clusters {
		for r := range c.rules() {
			for _, p := range r.Ports {
				if p.Name != "" {
					names[policy.NamedPort{Name: p.Name, Proto: p.Proto}] = true
				} else if p.First <= p.Last {
					cut(p.Proto, p.First, p.Last)
				}
			}
		}
	}
	for _, c := range clusters {
		for _, s := range c.endpoints {
			for _, n := range s.ports {
				if names[policy.NamedPort{Name: n.Name, Proto: n.Proto}] || names[policy.NamedPort{Name: n.Name, Proto: packet.Unknown}] {
					cut(n.Proto, n.Port, n.Port)
				}
			}
		}
	}
	var spans []PortRange
	for _, proto := range []packet.Proto{packet.TCP, packet.UDP, packet.SCTP} {
		spans = append(spans, portRangesBetween(proto, cuts[proto])...)
	}
	return append(spans, PortRange{Proto: packet.ICMP})
}

func portRangesBetween(proto packet.Proto, cuts []int) []PortRange {
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	var spans []PortRange
	for i, first := range cuts {
		last := maxPort
		if i+1 < len(cuts) {
			last = cuts[i+1] - 1
		}
		if first <= maxPort {
			spans = append(spans, PortRange{Proto: proto, First: uint16(first), Last: uint16(last)})
		}
	}
	return spans
}

// rules yields the rules of all chains; the rules of a shared chain once.
func (c *Cluster) rules() func(yield func(*policy.Rule) bool) {
	return func(yield func(*policy.Rule) bool) {
		for chain := range c.chains() {
			for i := range chain.Rules {
				if !yield(&chain.Rules[i]) {
					return
				}
			}
		}
	}
}

// chains yields all chains, each once.
func (c *Cluster) chains() func(yield func(*policy.Chain) bool) {
	return func(yield func(*policy.Chain) bool) {
		seen := map[*policy.Chain]bool{nil: true}
		for e := range c.subjects(c.snapshot) {
			for _, chain := range []*policy.Chain{e.Ingress, e.Egress} {
				if seen[chain] {
					continue
				}
				seen[chain] = true
				if !yield(chain) {
					return
				}
			}
		}
	}
}
