package policy

import (
	"cmp"
	"math"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// portTable finds the rules whose numeric ports match a destination port of one protocol. The zero
// portTable is empty.
type portTable struct {
	starts []uint16 // the ports at which the set of matching rules changes
	at     []uint32 // for each start, the index into sets
	sets   []set
}

// match returns the rules that match port.
func (t *portTable) match(port uint16) set {
	n, found := slices.BinarySearch(t.starts, port)
	if !found {
		n--
	}
	if n < 0 {
		return nil
	}
	return t.sets[t.at[n]]
}

// portEdge is a port from which on n more items of a rule match; n is 1 or -1.
type portEdge struct {
	port uint32
	rule uint32
	n    int32
}

func newPortTable(rules []Rule, proto packet.Proto) portTable {
	edges := portEdges(rules, proto)
	w := newSweep(len(rules))
	var t portTable
	for i, e := range edges {
		w.add(e.rule, e.n)
		if i+1 < len(edges) && edges[i+1].port == e.port {
			continue
		}
		at := w.set()
		if n := len(t.at); n > 0 && t.at[n-1] == at {
			continue
		}
		t.starts, t.at = append(t.starts, uint16(e.port)), append(t.at, at)
	}
	t.sets = w.sets
	return t
}

func portEdges(rules []Rule, proto packet.Proto) []portEdge {
	var edges []portEdge
	for i := range rules {
		if rules[i].AnyPort {
			continue
		}
		for _, p := range rules[i].Ports {
			if p.Name != "" || p.Proto != proto || p.First > p.Last {
				continue
			}
			edges = append(edges, portEdge{uint32(p.First), uint32(i), 1})
			if p.Last < math.MaxUint16 {
				edges = append(edges, portEdge{uint32(p.Last) + 1, uint32(i), -1})
			}
		}
	}
	slices.SortFunc(edges, func(a, b portEdge) int { return cmp.Compare(a.port, b.port) })
	return edges
}
