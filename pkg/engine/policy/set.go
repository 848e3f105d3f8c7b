package policy

import (
	"math/bits"
	"slices"
)

// set is a set of indices of rules in a chain. It is immutable, and similar sets share pages. The
// zero set is empty.
type set []*page

// page is the part of a set for pageRules neighbouring rules. Only non-zero words are stored.
type page struct {
	present uint64   // bit i is set if word i is not zero
	words   []uint64 // the words that are not zero
}

const (
	wordRules = 64
	pageRules = 64 * wordRules
)

var emptyPage = &page{}

// newSet returns the set of rules, which it sorts.
func newSet(rules []uint32) set {
	slices.Sort(rules)
	return set(nil).flip(slices.Compact(rules))
}

// page returns page n.
func (s set) page(n int) *page {
	if n < len(s) {
		return s[n]
	}
	return emptyPage
}

// word returns word n.
func (p *page) word(n int) uint64 {
	bit := uint64(1) << n
	if p.present&bit == 0 {
		return 0
	}
	return p.words[bits.OnesCount64(p.present&(bit-1))]
}

// flip returns the symmetric difference of s and rules, which are in ascending order without
// duplicates.
func (s set) flip(rules []uint32) set {
	if len(rules) == 0 {
		return s
	}
	pages := max(len(s), int(rules[len(rules)-1]/pageRules)+1)
	flipped := make(set, pages)
	copy(flipped, s)
	for i := len(s); i < pages; i++ {
		flipped[i] = emptyPage
	}
	for len(rules) > 0 {
		n := rules[0] / pageRules
		end := slices.IndexFunc(rules, func(r uint32) bool { return r/pageRules != n })
		if end < 0 {
			end = len(rules)
		}
		flipped[n] = flipped[n].flip(rules[:end])
		rules = rules[end:]
	}
	return flipped
}

func (p *page) flip(rules []uint32) *page {
	var words [64]uint64
	for i := range words {
		words[i] = p.word(i)
	}
	for _, r := range rules {
		words[r%pageRules/wordRules] ^= 1 << (r % wordRules)
	}
	flipped := &page{}
	for i, w := range words {
		if w != 0 {
			flipped.present |= 1 << i
		}
	}
	if flipped.present == 0 {
		return emptyPage
	}
	flipped.words = make([]uint64, 0, bits.OnesCount64(flipped.present))
	for _, w := range words {
		if w != 0 {
			flipped.words = append(flipped.words, w)
		}
	}
	return flipped
}

// bytes is the size of s, counting shared pages in full.
func (s set) bytes() int {
	n := 8 * len(s)
	for _, p := range s {
		if p != emptyPage {
			n += 32 + 8*len(p.words)
		}
	}
	return n
}

// match holds the sets for a packet. The packet matches the rules that are in at least one set of
// each dimension: peers (first line) and ports (second line).
type match struct {
	anyPeer, blocks, peers set
	anyPort, ports, named  set
}

// next returns the first matching rule in [from, end), or end if there is none. It looks at no more
// words than a 64th of the number of rules.
func (m *match) next(from, end int) int {
	for n := from / pageRules; n*pageRules < end; n++ {
		a, b, c := m.anyPeer.page(n), m.blocks.page(n), m.peers.page(n)
		d, e, f := m.anyPort.page(n), m.ports.page(n), m.named.page(n)
		present := (a.present | b.present | c.present) & (d.present | e.present | f.present)
		if n == from/pageRules {
			present &= ^uint64(0) << (from % pageRules / wordRules)
		}
		for ; present != 0; present &= present - 1 {
			i := bits.TrailingZeros64(present)
			word := (a.word(i) | b.word(i) | c.word(i)) & (d.word(i) | e.word(i) | f.word(i))
			first := n*pageRules + i*wordRules
			if first < from {
				word &= ^uint64(0) << (from - first)
			}
			if word != 0 {
				return min(first+bits.TrailingZeros64(word), end)
			}
		}
	}
	return end
}
