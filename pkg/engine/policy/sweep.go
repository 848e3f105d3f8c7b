package policy

import "slices"

// sweep tracks the set of matching rules during a walk along addresses or ports. Equal sets are
// stored once.
type sweep struct {
	count    []int32 // for each rule, how many of its items match here
	current  set
	checksum uint64 // of the current set
	dirty    []priorMatch

	sets       []set // all distinct sets so far, the empty one first
	byChecksum map[uint64]uint32
}

// priorMatch records whether a rule matched at the last call of set.
type priorMatch struct {
	rule    uint32
	matched bool
}

func newSweep(rules int) *sweep {
	return &sweep{count: make([]int32, rules), sets: []set{nil}, byChecksum: map[uint64]uint32{0: 0}}
}

// add notes that n items more, or less, of a rule match from here on.
func (w *sweep) add(rule uint32, n int32) {
	w.dirty = append(w.dirty, priorMatch{rule, w.count[rule] > 0})
	w.count[rule] += n
}

// set returns the index into sets of the rules that match here.
func (w *sweep) set() uint32 {
	slices.SortStableFunc(w.dirty, func(a, b priorMatch) int { return int(a.rule) - int(b.rule) })
	var flips []uint32
	for i, d := range w.dirty {
		first := i == 0 || w.dirty[i-1].rule != d.rule
		if first && d.matched != (w.count[d.rule] > 0) {
			flips = append(flips, d.rule)
			w.checksum ^= mix(uint64(d.rule))
		}
	}
	w.dirty = w.dirty[:0]
	w.current = w.current.flip(flips)
	return w.store()
}

// store returns the index of the current set in sets. If checksums collide, a set may be stored
// more than once.
func (w *sweep) store() uint32 {
	at, ok := w.byChecksum[w.checksum]
	if ok && w.sets[at].same(w.current) {
		w.current = w.sets[at]
		return at
	}
	w.sets = append(w.sets, w.current)
	at = uint32(len(w.sets) - 1)
	if !ok {
		w.byChecksum[w.checksum] = at
	}
	return at
}

// same reports whether the sets have the same rules. The numbers of pages may differ.
func (s set) same(o set) bool {
	for n := range max(len(s), len(o)) {
		a, b := s.page(n), o.page(n)
		if a != b && (a.present != b.present || !slices.Equal(a.words, b.words)) {
			return false
		}
	}
	return true
}

// mix is the output function of splitmix64 (Steele et al., "Fast Splittable Pseudorandom Number
// Generators").
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
