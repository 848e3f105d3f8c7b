package policy

import (
	"net/netip"
	"slices"
)

// Local holds which of this node's pods need their packets evaluated. Snapshots share it as long as
// no pod of the node changes. Nil has no pods.
type Local struct {
	all             []netip.Addr
	selected        [directions][]netip.Addr
	toHost, toNames []netip.Addr
	rejecting       []netip.Addr
	// audited and auditedToHost are the pods that only audited policies add.
	audited       [directions][]netip.Addr
	auditedToHost []netip.Addr
}

// NewLocal returns the pods at addrs. Each address must be in endpoints.
func NewLocal(endpoints Endpoints, addrs []netip.Addr) *Local {
	l := &Local{all: slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)}
	for _, a := range l.all {
		l.add(a, endpoints.At(a))
	}
	return l
}

func (l *Local) add(a netip.Addr, e *Endpoint) {
	for d := range l.selected {
		switch d := Direction(d); {
		case e.chain(d) != nil || d == Egress && e.AwaitsStatus:
			l.selected[d] = append(l.selected[d], a)
		case e.auditedIn(d):
			l.audited[d] = append(l.audited[d], a)
		}
	}
	if e.Rejects && (e.Ingress != nil || e.Egress != nil) {
		l.rejecting = append(l.rejecting, a)
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
	return *e.Egress.findNeeds()
}
