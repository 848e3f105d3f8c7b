package flows

// A flow is in two orders.
const (
	allFlows = iota
	sameSource
	orders
)

// links are the neighbours of a flow in one order, nil at its ends.
type links struct{ newer, older *flow }

// order has flows from the one that was seen last to the one that was seen least recently.
type order struct {
	of             int // which of the links of its flows it is made of
	newest, oldest *flow
	len            int
}

// add makes f the newest.
func (o *order) add(f *flow) {
	f.links[o.of] = links{older: o.newest}
	if o.newest != nil {
		o.newest.links[o.of].newer = f
	} else {
		o.oldest = f
	}
	o.newest = f
	o.len++
}

func (o *order) remove(f *flow) {
	l := f.links[o.of]
	if l.newer != nil {
		l.newer.links[o.of].older = l.older
	} else {
		o.newest = l.older
	}
	if l.older != nil {
		l.older.links[o.of].newer = l.newer
	} else {
		o.oldest = l.newer
	}
	o.len--
}
