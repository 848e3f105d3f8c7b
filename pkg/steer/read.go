package steer

import (
	"context"
	"maps"
	"slices"
)

// kernel is what a Steerer asks the kernel. Only nft and writeXTables write.
type kernel interface {
	// generation counts the commits to nftables in this network namespace,
	// whoever made them. It wraps and leaves out 0.
	generation(context.Context) (uint32, error)
	// read returns what stands under the table's name.
	read(context.Context) (*held, error)
	// counters returns the packets that each counter of the table has counted.
	counters(context.Context) (map[string]uint64, error)
	// listen reports the commits to nftables until ctx ends, which is no error.
	// It calls started once nothing is missed any more.
	listen(ctx context.Context, started func(), report func(commit)) error
}

// layout tells what stands under the table's name.
type layout uint8

const (
	absent  layout = iota // nothing
	foreign               // other objects than ours, e.g. of an older version
	ours                  // our chains, sets and counter, and no others
)

// held is what the kernel holds.
type held struct {
	// generation is the last one at which this is known to be so.
	generation uint32
	layout     layout
	base       base
	sets       contents // nil elements: something in there that we do not write
}

// base identifies all of a table but the elements of our sets. Two that are equal
// do the same to a packet.
type base struct {
	objects map[string]string   // by kind and name
	rules   map[string][]string // of each chain, in order
}

func (b base) equal(o base) bool {
	return maps.Equal(b.objects, o.objects) && maps.EqualFunc(b.rules, o.rules, slices.Equal)
}

// emptyTable is what a table that does not exist holds.
func emptyTable() *held { return &held{layout: absent, sets: Sets{}.contents()} }

// sameAs reports whether h and o are the same table, at whatever generation.
func (h *held) sameAs(o *held) bool {
	return h.layout == o.layout && h.base.equal(o.base) &&
		maps.EqualFunc(h.sets, o.sets, func(a, b elements) bool { return (a == nil) == (b == nil) && maps.Equal(a, b) })
}

// isOurs reports whether the names in a table, by the kind of object, are
// exactly the ones that planBase makes from all.
func isOurs(all []chain, names map[string][]string) bool {
	want := map[string][]string{"counter": tableCounters}
	for _, c := range all {
		want["chain"] = append(want["chain"], c.name)
	}
	for _, spec := range setSpecs {
		want["set"] = append(want["set"], spec.name)
	}
	want["set"] = append(want["set"], shareSetNames(all)...)
	sorted := func(a, b []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
	}
	return maps.EqualFunc(names, want, sorted)
}
