package flows

// Each flow is in two lists: of all flows, and of those with the same source.
const (
	allFlows = iota
	sameSource
	orders
)

// links are the neighbours of a flow in one list, nil at the ends.
type links struct{ newer, older *flow }

// order is a list of flows, the most recently seen first.
type order struct {
	list           int // index in flow.links: allFlows or sameSource
	newest, oldest *flow
	len            int
}

// add makes f the newest.
func (o *order) add(f *flow) {
	f.links[o.list] = links{older: o.newest}
	if o.newest != nil {
		o.newest.links[o.list].newer = f
	} else {
		o.oldest = f
	}
	o.newest = f
	o.len++
}

func (o *order) remove(f *flow) {
	l := f.links[o.list]
	if l.newer != nil {
		l.newer.links[o.list].older = l.older
	} else {
		o.newest = l.older
	}
	if l.older != nil {
		l.older.links[o.list].newer = l.newer
	} else {
		o.oldest = l.newer
	}
	o.len--
}
