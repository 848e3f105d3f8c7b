package policy

import (
	"cmp"
	"iter"
	"math"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// program is a chain as one peer meets it: which rules are about the peer is
// settled, only protocol and port are left to ask. Whatever the number of
// rules, an answer is one binary search.
type program struct {
	hidden         *Rule // for protocols and ports that cannot be read
	other          *Rule // for protocols without ports
	tcp, udp, sctp []span
}

// span is a range of ports that one rule decides. It begins behind the span
// before it. Rule is nil where no rule decides.
type span struct {
	last uint16
	rule *Rule
}

// newProgram asks each rule about the peer of f.
func (c *Chain) newProgram(f *flow) *program {
	var rules []*Rule
	for i := range c.Rules {
		if r := &c.Rules[i]; r.matchesPeer(f) {
			rules = append(rules, r)
		}
	}
	return &program{
		hidden: decideHidden(rules, f.dst),
		other:  decideSpans(rules, packet.ICMP, nil)[0].rule,
		tcp:    decideSpans(rules, packet.TCP, f.dst),
		udp:    decideSpans(rules, packet.UDP, f.dst),
		sctp:   decideSpans(rules, packet.SCTP, f.dst),
	}
}

// decideHidden lets the rules, whose peers match, decide about packets to dst whose
// ports are hidden.
func decideHidden(rules []*Rule, dst *Endpoint) *Rule {
	f := flow{proto: packet.Unknown, dst: dst}
	var p progress
	for _, r := range rules {
		if p.asks(r) && r.matchesPort(&f) && p.settles(r, &f) {
			return r
		}
	}
	return p.allowed
}

// rule returns the rule that decides, nil if there is none.
func (p *program) rule(proto packet.Proto, port uint16) *Rule {
	var spans []span
	switch proto {
	case packet.TCP:
		spans = p.tcp
	case packet.UDP:
		spans = p.udp
	case packet.SCTP:
		spans = p.sctp
	default:
		if proto.Hidden() {
			return p.hidden
		}
		return p.other
	}
	i, _ := slices.BinarySearchFunc(spans, port, func(s span, port uint16) int { return cmp.Compare(s.last, port) })
	return spans[i].rule
}

// decideSpans divides the ports of proto into spans and lets the rules decide
// each, in order. The last span ends at the highest port.
func decideSpans(rules []*Rule, proto packet.Proto, dst *Endpoint) []span {
	starts := spanStarts(rules, proto, dst)
	decided := make([]*Rule, len(starts))
	passed := make([]Tier, len(starts)) // the tier that a rule has left
	open := newOpenSpans(len(starts))
	for _, r := range rules {
		if open.from(0) == len(starts) {
			break
		}
		for first, last := range r.portRanges(proto, dst) {
			at, _ := slices.BinarySearch(starts, uint32(first))
			for i := open.from(at); i < len(starts) && starts[i] <= uint32(last); i = open.from(i + 1) {
				switch {
				case passed[i] == r.Tier:
				case r.Verdict == Pass:
					passed[i] = r.Tier
				default:
					decided[i] = r
					open.close(i)
				}
			}
		}
	}
	return joinSpans(starts, decided)
}

// spanStarts returns the ports at which another rule may decide, in order. The
// first is 0.
func spanStarts(rules []*Rule, proto packet.Proto, dst *Endpoint) []uint32 {
	starts := []uint32{0}
	for _, r := range rules {
		for first, last := range r.portRanges(proto, dst) {
			starts = append(starts, uint32(first))
			if last < math.MaxUint16 {
				starts = append(starts, uint32(last)+1)
			}
		}
	}
	slices.Sort(starts)
	return slices.Compact(starts)
}

// joinSpans makes one span of neighbours with one decision.
func joinSpans(starts []uint32, decided []*Rule) []span {
	var spans []span
	for i, r := range decided {
		last := uint32(math.MaxUint16)
		if i+1 < len(starts) {
			last = starts[i+1] - 1
		}
		if n := len(spans); n > 0 && spans[n-1].rule == r {
			spans[n-1].last = uint16(last)
			continue
		}
		spans = append(spans, span{uint16(last), r})
	}
	return slices.Clip(spans)
}

// portRanges yields the first and last ports that the rule matches for proto
// when dst is the destination.
func (r *Rule) portRanges(proto packet.Proto, dst *Endpoint) iter.Seq2[uint16, uint16] {
	return func(yield func(first, last uint16) bool) {
		if r.AnyPort {
			yield(0, math.MaxUint16)
			return
		}
		for i := range r.Ports {
			if !r.Ports[i].ranges(proto, dst, yield) {
				return
			}
		}
	}
}

// ranges reports whether the caller wants more.
func (p *Port) ranges(proto packet.Proto, dst *Endpoint, yield func(first, last uint16) bool) bool {
	switch {
	case !p.is(proto):
	case p.Name == "":
		return p.First > p.Last || yield(p.First, p.Last)
	case dst != nil:
		for _, n := range dst.Ports {
			if n.Name == p.Name && n.Proto == proto && !yield(n.Port, n.Port) {
				return false
			}
		}
	}
	return true
}

// openSpans finds the next span that is not decided, however many are.
type openSpans []int // where to look on: itself while the span is open

func newOpenSpans(n int) openSpans {
	o := make(openSpans, n+1) // the last one is behind the end and stays open
	for i := range o {
		o[i] = i
	}
	return o
}

// from returns the first open span from i on.
func (o openSpans) from(i int) int {
	for o[i] != i {
		o[i] = o[o[i]] // the next search takes half the steps
		i = o[i]
	}
	return i
}

func (o openSpans) close(i int) { o[i] = i + 1 }
