package reachability

import (
	"maps"
	"slices"
	"strings"
)

// Difference is what changes between two clusters.
type Difference struct {
	Checked  []PortRange `json:"checked"`  // the traffic that was compared
	Pods     int         `json:"pods"`     // how many were compared
	Nodes    []string    `json:"nodes"`    // addresses of nodes that were also compared
	External []string    `json:"external"` // external addresses that were also compared
	Changes  []Change    `json:"changes"`
	// DomainRules are rules of both clusters whose domain names match no address here.
	DomainRules []string `json:"domainRules,omitempty"`
	// OnlyBefore and OnlyAfter are pods of one of the clusters; there is nothing
	// to compare them with.
	OnlyBefore []string `json:"onlyBefore,omitempty"`
	OnlyAfter  []string `json:"onlyAfter,omitempty"`
}

// Change is the connections that change for some traffic.
type Change struct {
	Traffic []PortRange `json:"traffic"`
	Cells   []Cell      `json:"cells"`

	// Lost and Gained have the cells that change to denied and to allowed.
	Lost, Gained *Matrix `json:"-"`
}

// Cell is a connection that changes.
type Cell struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Allowed bool   `json:"allowed"` // afterwards
}

// Compare returns what changes from before to after, for the pods that are in both
// and for addresses, in the order of spans. Traffic that changes alike is one
// Change.
func Compare(before, after *Cluster, spans []PortRange, addresses []string, family Family) (Difference, error) {
	d := Difference{Checked: spans, Nodes: []string{}, External: []string{}, Changes: []Change{}}
	d.DomainRules = slices.Compact(slices.Sorted(slices.Values(append(before.DomainRules(), after.DomainRules()...))))
	d.OnlyBefore, d.OnlyAfter = unshared(before, after, family), unshared(after, before, family)
	var from, to []Endpoint // of before and of after, in the same order
	for _, s := range before.Pods(family) {
		if other, both := after.endpoints[s.Name]; both && other.has(family) {
			from, to = append(from, s), append(to, other)
		}
	}
	d.Pods = len(from)
	for _, name := range addresses {
		b, err := before.Endpoint(name)
		if err != nil {
			return Difference{}, err
		}
		a, err := after.Endpoint(name)
		if err != nil {
			return Difference{}, err
		}
		from, to = append(from, b), append(to, a)
		if a.Kind == Node || b.Kind == Node {
			d.Nodes = append(d.Nodes, name)
		} else {
			d.External = append(d.External, name)
		}
	}
	alike := map[string]int{}
	for _, span := range spans {
		was, is := before.Matrix(from, from, span.Port(), family), after.Matrix(to, to, span.Port(), family)
		key := difference(was, is)
		if key == "" {
			continue
		}
		if i, seen := alike[key]; seen {
			d.Changes[i].Traffic = append(d.Changes[i].Traffic, span)
			continue
		}
		alike[key] = len(d.Changes)
		d.Changes = append(d.Changes, newChange(span, was, is))
	}
	return d, nil
}

// unshared returns the names of the pods of c that other does not have.
func unshared(c, other *Cluster, family Family) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.endpoints)) {
		s, o := c.endpoints[name], other.endpoints[name]
		if s.has(family) && !o.has(family) {
			names = append(names, name)
		}
	}
	return names
}

// difference is the same for the same changes, and empty for none.
func difference(was, is *Matrix) string {
	var key strings.Builder
	changed := false
	for i := range was.allowed {
		switch {
		case was.allowed[i] == is.allowed[i]:
			key.WriteByte('=')
		case is.allowed[i]:
			changed = true
			key.WriteByte('+')
		default:
			changed = true
			key.WriteByte('-')
		}
	}
	if !changed {
		return ""
	}
	return key.String()
}

func newChange(span PortRange, was, is *Matrix) Change {
	c := Change{Traffic: []PortRange{span}}
	matrix := func() *Matrix {
		return &Matrix{Port: span.Port(), From: is.From, To: is.To, allowed: make([]bool, len(is.allowed))}
	}
	c.Lost, c.Gained = matrix(), matrix()
	for i := range is.allowed {
		if was.allowed[i] == is.allowed[i] {
			continue
		}
		changed := c.Lost
		if is.allowed[i] {
			changed = c.Gained
		}
		changed.allowed[i] = true
		c.Cells = append(c.Cells, Cell{is.From[i/len(is.To)].Name, is.To[i%len(is.To)].Name, is.allowed[i]})
	}
	return c
}
