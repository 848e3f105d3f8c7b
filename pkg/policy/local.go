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
	// audited and auditedToHost are the pods that audited policies alone add.
	audited       [directions][]netip.Addr
	auditedToHost []netip.Addr
}

// NewLocal returns the pods at addrs, each of which is an address of endpoints.
func NewLocal(endpoints Endpoints, addrs []netip.Addr) *Local {
	l := &Local{all: slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)}
	for _, a := range l.all {
		l.add(a, endpoints.At(a))
	}
	return l
}

// add adds the pod e at a.
func (l *Local) add(a netip.Addr, e *Endpoint) {
	for d := range l.selected {
		switch d := Direction(d); {
		case e.chain(d) != nil || d == Egress && e.AwaitsStatus:
			l.selected[d] = append(l.selected[d], a)
		case e.auditedIn(d):
			l.audited[d] = append(l.audited[d], a)
		}
	}
	enforced := e.egressNeeds()
	audited := enforced
	if e.Audited != nil {
		audited = e.Audited.egressNeeds()
	}
	switch {
	case enforced.host:
		l.toHost = append(l.toHost, a)
	case audited.host:
		l.auditedToHost = append(l.auditedToHost, a)
	}
	if enforced.names || audited.names {
		l.toNames = append(l.toNames, a)
	}
}

// egressNeeds returns the needs of the pod's egress chain.
func (e *Endpoint) egressNeeds() needs {
	if e.Egress == nil {
		return needs{}
	}
	return *e.Egress.read()
}
