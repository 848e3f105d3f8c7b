package steer

import (
	"context"
	"maps"
	"slices"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
)

// kernel reads the state of nftables. It does not write.
type kernel interface {
	// generation returns the number of commits to nftables in this network namespace, by any
	// process. It wraps around and skips 0.
	generation(context.Context) (uint32, error)
	// flowtables reports whether a table of any family has a flowtable.
	flowtables(context.Context) (bool, error)
	// exists reports whether there is a table with our name.
	exists(context.Context) (bool, error)
	// read returns the observed state of the table, in which want describes our layout.
	read(ctx context.Context, want tableLayout) (*observedState, error)
	// owners returns the elements of the sets of owners, of a table with any layout, or of the former
	// one if there is none. It skips elements that it cannot decode: the first desired state replaces
	// them.
	owners(context.Context) ([]element, error)
	// counters returns the packets of each counter of the table.
	counters(context.Context) (map[string]uint64, error)
	// listen reports commits to nftables until ctx ends, and then returns nil. It calls started
	// when it has subscribed.
	listen(ctx context.Context, started func(), report func(commit)) error
}

// tableLayout is what our table consists of, apart from the elements of its sets.
type tableLayout struct {
	chains []chain
	sets   []*knftables.Set
	specs  []setSpec // of the sets whose elements the agent writes
}

func layoutOf(cfg Config) tableLayout { return tableLayout{chains(cfg), tableSets(cfg), cfg.specs()} }

// layout is what exists under the table's name.
type layout uint8

const (
	absent       layout = iota // nothing
	incompatible               // different objects, for example those of an older version
	ours                       // exactly our chains, sets and counters
)

// observedState is the state of the table as last read from the kernel, or written.
type observedState struct {
	// generation is the latest one at which this state is known to be correct, according to
	// notifications.
	generation uint32
	// read is the generation at which the table was read. It advances with our own commits as
	// long as there are no others in between.
	read   uint32
	layout layout
	base   base
	sets   contents        // nil elements: the set has elements that we do not write
	named  bool            // the table has a set for its holder
	holder handover.Holder // the zero Holder if it is not known
	// names are those of an incompatible table that can be changed in place, by kind of
	// object, else nil.
	names map[string][]string
}

// base identifies everything in a table except the elements of our sets. Tables with equal bases and
// elements treat packets alike.
type base struct {
	objects map[string]string   // handles by kind and name
	rules   map[string][]string // the rules of each chain, in order
}

func (b base) equal(o base) bool {
	return maps.Equal(b.objects, o.objects) && maps.EqualFunc(b.rules, o.rules, slices.Equal)
}

// emptyTable is the observed state of a table that does not exist.
func emptyTable() *observedState { return &observedState{layout: absent, sets: Sets{}.contents()} }

// sameAs reports whether o and p are the same table, regardless of their generations.
func (o *observedState) sameAs(p *observedState) bool {
	return o.layout == p.layout && o.holder == p.holder && o.base.equal(p.base) &&
		maps.EqualFunc(o.sets, p.sets, func(a, b elements) bool { return (a == nil) == (b == nil) && maps.Equal(a, b) })
}

// kinds are the kinds of objects of a table, in the order in which they can be deleted.
var kinds = []string{"chain", "set", "counter"}

// changeable reports whether a table with these objects, by kind, can be changed to our layout in
// place. It must have holderSet: agents with this mechanism use equal names for equal objects.
func changeable(names map[string][]string) bool {
	for kind := range names {
		if !slices.Contains(kinds, kind) {
			return false
		}
	}
	return slices.Contains(names["set"], holderSet)
}

// names returns the names of the objects, by kind, that planBase creates.
func (l tableLayout) names() map[string][]string {
	names := map[string][]string{"counter": tableCounters}
	for _, c := range l.chains {
		names["chain"] = append(names["chain"], c.name)
	}
	for _, set := range l.sets {
		names["set"] = append(names["set"], set.Name)
	}
	return names
}

// isOurs reports whether the names of the objects in a table are exactly those of l.
func (l tableLayout) isOurs(names map[string][]string) bool {
	sorted := func(a, b []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
	}
	return maps.EqualFunc(names, l.names(), sorted)
}
