package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// blockTable finds the rules whose blocks contain an address.
type blockTable struct {
	table bart.Table[uint32] // every prefix and every exception, with the index into sets of the rules that match there
	sets  []set
}

// at returns the rules whose blocks contain a.
func (t *blockTable) at(a netip.Addr) set {
	if t == nil {
		return nil
	}
	n, _ := t.table.Lookup(a)
	return t.sets[n]
}

// blockEdge is the prefix of a block, or of one of its exceptions.
type blockEdge struct {
	prefix      netip.Prefix
	block       uint32 // numbers the blocks
	rule        uint32
	isException bool
}

// newBlockTable returns nil if no rule has a block.
func newBlockTable(rules []Rule) *blockTable {
	edges, blocks := blockEdges(rules)
	if len(edges) == 0 {
		return nil
	}
	w := &blockWalk{sweep: newSweep(len(rules)), inside: make([]bool, blocks), exceptions: make([]int32, blocks)}
	t := &blockTable{}
	for len(edges) > 0 {
		prefix := edges[0].prefix
		end := slices.IndexFunc(edges, func(e blockEdge) bool { return e.prefix != prefix })
		if end < 0 {
			end = len(edges)
		}
		w.enter(prefix, edges[:end])
		t.table.Insert(prefix, w.set())
		edges = edges[end:]
	}
	t.sets = w.sets
	return t
}

// blockEdges returns the edges of all blocks, wider prefixes before those that they
// contain, and the number of blocks.
func blockEdges(rules []Rule) (edges []blockEdge, blocks uint32) {
	add := func(e blockEdge, p netip.Prefix) {
		e.prefix = p.Masked()
		if e.prefix.IsValid() {
			edges = append(edges, e)
		}
	}
	for i := range rules {
		if rules[i].AnyPeer {
			continue
		}
		for j := range rules[i].Peers {
			for _, b := range rules[i].Peers[j].blocks() {
				e := blockEdge{block: blocks, rule: uint32(i)}
				add(e, b.Prefix)
				e.isException = true
				for _, isException := range b.Except {
					add(e, isException)
				}
				blocks++
			}
		}
	}
	slices.SortFunc(edges, func(a, b blockEdge) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
	return edges, blocks
}

// blocks returns the blocks of a peer that has no other field.
func (p *Peer) blocks() []Block {
	if p.Pods != nil || p.Nodes != nil || p.Domains != nil {
		return nil
	}
	return p.Blocks
}

// blockWalk visits prefixes from wider to narrower and keeps the path of prefixes around the
// current one.
type blockWalk struct {
	*sweep
	inside     []bool  // for each block, whether the walk is inside its prefix
	exceptions []int32 // for each block, how many of its exceptions the walk is inside
	path       [][]blockEdge
}

// enter visits a prefix; edges are those with this prefix.
func (w *blockWalk) enter(prefix netip.Prefix, edges []blockEdge) {
	for n := len(w.path); n > 0 && !contains(w.path[n-1][0].prefix, prefix); n-- {
		for _, e := range w.path[n-1] {
			w.cross(e, false)
		}
		w.path = w.path[:n-1]
	}
	for _, e := range edges {
		w.cross(e, true)
	}
	w.path = append(w.path, edges)
}

// cross enters or leaves the prefix of an edge.
func (w *blockWalk) cross(e blockEdge, inwards bool) {
	before := w.matches(e.block)
	switch {
	case !e.isException:
		w.inside[e.block] = inwards
	case inwards:
		w.exceptions[e.block]++
	default:
		w.exceptions[e.block]--
	}
	switch now := w.matches(e.block); {
	case now && !before:
		w.add(e.rule, 1)
	case before && !now:
		w.add(e.rule, -1)
	}
}

func (w *blockWalk) matches(block uint32) bool { return w.inside[block] && w.exceptions[block] == 0 }

func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}
