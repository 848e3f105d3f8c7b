package policy

import (
	"net/netip"
	"slices"
)

// Local is what a snapshot has about this node's own pods: whose packets have to
// be evaluated. It is the same for all snapshots between which no pod of the node has
// changed. Nil knows no pods.
type Local struct {
	all             []netip.Addr
	selected        [directions][]netip.Addr
	toHost, toNames []netip.Addr
}

// NewLocal returns the pods at addrs, each of which is an address of endpoints.
func NewLocal(endpoints Endpoints, addrs []netip.Addr) *Local {
	l := &Local{all: slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)}
	for _, a := range l.all {
		e := endpoints.At(a)
		for d := range l.selected {
			if e.chain(Direction(d)) != nil || Direction(d) == Egress && e.AwaitsStatus {
				l.selected[d] = append(l.selected[d], a)
			}
		}
		if e.Egress == nil {
			continue
		}
		needs := e.Egress.read()
		if needs.host {
			l.toHost = append(l.toHost, a)
		}
		if needs.names {
			l.toNames = append(l.toNames, a)
		}
	}
	return l
}
