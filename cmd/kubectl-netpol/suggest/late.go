package suggest

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// mostLate is how many flows that look like late packets are named.
const mostLate = 3

// lateLeftOut returns by node the time since which its agent leaves late packets out of its
// flows: packets that do not begin a connection. Earlier versions recorded them like
// attempts to connect, often from a server to its clients' ports.
func lateLeftOut(records []flows.Record) map[string]time.Time {
	since := map[string]time.Time{}
	for i := range records {
		r := &records[i]
		if r.Type != flows.TypeAgent || r.Late == nil || r.Started == nil {
			continue
		}
		if t, known := since[r.Node]; !known || r.Started.Before(t) {
			since[r.Node] = *r.Started
		}
	}
	return since
}

// withoutLate separates the flows that look like late packets. Only agents of earlier
// versions have recorded such a flow, its port is ephemeral, and a flow in the other
// direction to a server's port was allowed.
func withoutLate(all []*flow) (kept, late []*flow) {
	opened := newOpened(all)
	for _, f := range all {
		if f.mayBeLate && f.port >= packet.FirstEphemeralPort && opened.has(f.destination.addr, f.source.addr, f.protocol) {
			late = append(late, f)
		} else {
			kept = append(kept, f)
		}
	}
	return kept, late
}

type pair struct {
	source, destination netip.Addr
	protocol            string
}

// opened has the allowed flows to servers' ports.
type opened struct {
	pairs  map[pair]bool
	blocks []*flow // one end is the first address of a block
}

func newOpened(all []*flow) *opened {
	o := &opened{pairs: map[pair]bool{}}
	for _, f := range all {
		if f.denied || f.port >= packet.FirstEphemeralPort {
			continue
		}
		o.pairs[pair{f.source.addr, f.destination.addr, f.protocol}] = true
		if f.several != "" {
			o.blocks = append(o.blocks, f)
		}
	}
	return o
}

func (o *opened) has(source, destination netip.Addr, protocol string) bool {
	return o.pairs[pair{source, destination, protocol}] || slices.ContainsFunc(o.blocks, func(f *flow) bool {
		block, err := netip.ParsePrefix(f.several)
		if err != nil || f.protocol != protocol {
			return false // several is a domain
		}
		return f.source.addr == source && block.Contains(destination) || f.destination.addr == destination && block.Contains(source)
	})
}

// lateNote lists flows that do not count because they look like late packets.
func lateNote(late []*flow) string {
	var named []string
	for _, f := range late {
		named = append(named, f.String())
	}
	return fmt.Sprintf("Flows that agents of an earlier version recorded do not count if they look like the last packets of connections that were opened in the other direction: %s.", words.Few(named, mostLate, "; "))
}
