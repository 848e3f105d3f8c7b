package policy

import "slices"

// sweep follows the set of rules that match while one walks along addresses or
// ports. Equal sets are stored once.
type sweep struct {
	count []int32 // for each rule, how many of its items match here
	now   set
	print uint64 // a checksum of now
	dirty []was

	sets  []set // all that were seen, the empty one first
	found map[uint64]uint32
}

// was records whether a rule matched when the walk stopped last.
type was struct {
	rule    uint32
	matched bool
}

func newSweep(rules int) *sweep {
	return &sweep{count: make([]int32, rules), sets: []set{nil}, found: map[uint64]uint32{0: 0}}
}

// add notes that n items more, or less, of a rule match from here on.
func (w *sweep) add(rule uint32, n int32) {
	w.dirty = append(w.dirty, was{rule, w.count[rule] > 0})
	w.count[rule] += n
}

// set returns the place in sets of the rules that match here.
func (w *sweep) set() uint32 {
	slices.SortStableFunc(w.dirty, func(a, b was) int { return int(a.rule) - int(b.rule) })
	var flips []uint32
	for i, d := range w.dirty {
		first := i == 0 || w.dirty[i-1].rule != d.rule
		if first && d.matched != (w.count[d.rule] > 0) {
			flips = append(flips, d.rule)
			w.print ^= mix(uint64(d.rule))
		}
	}
	w.dirty = w.dirty[:0]
	w.now = w.now.flip(flips)
	return w.store()
}

// store returns the place of now in sets. Different sets of one checksum are
// stored as often as they are seen.
func (w *sweep) store() uint32 {
	at, ok := w.found[w.print]
	if ok && w.sets[at].same(w.now) {
		w.now = w.sets[at]
		return at
	}
	w.sets = append(w.sets, w.now)
	at = uint32(len(w.sets) - 1)
	if !ok {
		w.found[w.print] = at
	}
	return at
}

// same reports whether the sets have the same rules, whatever the number of their
// pages.
func (s set) same(o set) bool {
	for n := range max(len(s), len(o)) {
		a, b := s.page(n), o.page(n)
		if a != b && (a.present != b.present || !slices.Equal(a.words, b.words)) {
			return false
		}
	}
	return true
}

// mix is the last step of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
