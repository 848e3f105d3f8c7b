package reachability

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Side is what a row or a column of an Overview stands for: endpoints that are shown as one.
type Side struct {
	Namespace string // empty for addresses
	Name      string // within the namespace; empty for a namespace as a whole
	Members   []Endpoint
	// Replicated is set where more pods like the members may come. Then the cell of the side
	// with itself is about two of its pods even if there is one.
	Replicated bool
	// Ports are, of a destination, those that are looked at. Empty means all.
	Ports []Port
}

// String returns "namespace/name", or the only one of them that there is.
func (s *Side) String() string {
	if s.Namespace == "" || s.Name == "" {
		return s.Namespace + s.Name
	}
	return s.Namespace + "/" + s.Name
}

// Sides returns the sides of pods, in the order of their namespaces and names. The function
// returns the side of a pod, without members.
func (c *Cluster) Sides(pods []Endpoint, of func(*corev1.Pod) Side) []Side {
	at := map[[2]string]int{}
	var sides []Side
	for _, p := range pods {
		side := of(c.pods[p.Name])
		key := [2]string{side.Namespace, side.Name}
		i, known := at[key]
		if !known {
			i = len(sides)
			at[key] = i
			sides = append(sides, side)
		}
		sides[i].Members = append(sides[i].Members, p)
	}
	slices.SortStableFunc(sides, func(a, b Side) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return sides
}

// Overview reports for every side of From and every side of To which ports the members of the
// one reach of those of the other.
type Overview struct {
	From, To []Side
	// Port is the only one that was looked at, zero for all. Where it is set, the set of a
	// cell has all ports or none.
	Port Port

	r          *Reach
	rows       [][]part // of From
	columns    [][]part // of To
	every, any []int32  // row by row
}

// part is members of a side that are alike, by their places in Reach.endpoints. They are on
// different nodes.
type part []int

// Overview evaluates all pairs of sides. A zero port stands for all ports.
func (c *Cluster) Overview(from, to []Side, port Port, family Family) *Overview {
	var endpoints []Endpoint
	at := map[string]int{}
	for _, side := range slices.Concat(from, to) {
		for _, m := range side.Members {
			if number(at, m.Name) == len(endpoints) {
				endpoints = append(endpoints, m)
			}
		}
	}
	o := &Overview{From: from, To: to, Port: port, r: c.Reach(endpoints, family)}
	o.rows, o.columns = o.parts(from, at), o.parts(to, at)
	for row := range from {
		for column := range to {
			every, any := o.evaluate(row, column)
			o.every, o.any = append(o.every, every), append(o.any, any)
		}
	}
	return o
}

func (o *Overview) parts(sides []Side, at map[string]int) [][]part {
	all := make([][]part, len(sides))
	for i, side := range sides {
		classes := map[int]int{} // the part of a class
		for _, m := range side.Members {
			p := &o.r.places[at[m.Name]]
			if j, known := classes[p.class]; known && p.pod != nil {
				all[i][j] = append(all[i][j], at[m.Name])
				continue
			}
			classes[p.class] = len(all[i])
			all[i] = append(all[i], part{at[m.Name]})
		}
	}
	return all
}

// evaluate returns what every pair of two sides may use, and what some pair may.
func (o *Overview) evaluate(row, column int) (every, any int32) {
	every, any = allPorts, noPorts
	for set := range o.pairs(row, column) {
		every, any = o.r.sets.intersect(every, set.ports), o.r.sets.union(any, set.ports)
	}
	return every, any
}

// pair is what one member of a side may use of one of another, and how many such pairs there
// are.
type pair struct {
	from, to int // in Reach.endpoints
	ports    int32
	count    int
}

// pairs yields the pairs of two sides, those that are alike once. A pod and itself are a pair
// only where there is no other.
func (o *Overview) pairs(row, column int) func(yield func(pair) bool) {
	alone := len(o.From[row].Members)*len(o.To[column].Members) == 1
	return func(yield func(pair) bool) {
		for _, a := range o.rows[row] {
			for _, b := range o.columns[column] {
				for _, p := range o.expand(a, b) {
					same := a[0] == b[0] && len(p[0]) == len(p[1])
					count := len(p[0]) * len(p[1])
					from, to := p[0][0], p[1][0]
					if same && count > 1 {
						count -= len(p[0])
						to = p[1][1]
					} else if same && !alone {
						continue
					}
					set := o.r.between(from, to, o.several(row, column))
					set = o.narrow(set, &o.To[column], &o.r.endpoints[to])
					if !yield(pair{from, to, set, count}) {
						return
					}
				}
			}
		}
	}
}

// several reports whether a pod in both sides stands for several.
func (o *Overview) several(row, column int) bool {
	return o.From[row].Replicated || o.To[column].Replicated
}

// expand returns the pairs of two parts. What a node and a pod reach of each other depends on
// the pod's node.
func (o *Overview) expand(a, b part) [][2]part {
	if !o.r.endpoints[a[0]].onHost() && !o.r.endpoints[b[0]].onHost() {
		return [][2]part{{a, b}}
	}
	var pairs [][2]part
	for i := range a {
		for j := range b {
			pairs = append(pairs, [2]part{a[i : i+1], b[j : j+1]})
		}
	}
	return pairs
}

// narrow returns what of a set is looked at.
func (o *Overview) narrow(set int32, to *Side, dst *Endpoint) int32 {
	if o.Port != (Port{}) {
		if number, ok := o.Port.on(dst); ok && o.r.sets.all[set].Has(o.Port.Proto, number) {
			return allPorts
		}
		return noPorts
	}
	if len(to.Ports) == 0 {
		return set
	}
	var only []PortRange
	for _, p := range to.Ports {
		if number, ok := p.on(dst); ok {
			only = append(only, PortRange{Proto: p.Proto, First: number, Last: number})
		}
	}
	return o.r.sets.intersect(set, o.r.sets.place(NewPortSet(only...)))
}

// Every returns the ports that every pair of members may use.
func (o *Overview) Every(row, column int) PortSet {
	return o.r.sets.all[o.every[row*len(o.To)+column]]
}

// Some returns the ports that some pairs of members may use and others may not.
func (o *Overview) Some(row, column int) PortSet {
	cell := o.Cell(row, column)
	if cell[0] == cell[1] {
		return PortSet{}
	}
	return o.r.sets.all[cell[1]].Without(o.r.sets.all[cell[0]])
}

// Cell returns a key of a cell, which equal cells share.
func (o *Overview) Cell(row, column int) [2]int32 {
	at := row*len(o.To) + column
	return [2]int32{o.every[at], o.any[at]}
}

// Partial is how the pairs of members of two sides differ.
type Partial struct {
	Pairs    int       // how many there are
	Reaching int       // how many may use all that any may
	With     [2]string // one of these, source and destination
	Without  [2]string // one of the others
}

// Partial reports how the pairs of a cell differ.
func (o *Overview) Partial(row, column int) Partial {
	var out Partial
	any := o.any[row*len(o.To)+column]
	for p := range o.pairs(row, column) {
		example := &out.Without
		if p.ports == any {
			out.Reaching += p.count
			example = &out.With
		}
		out.Pairs += p.count
		if example[0] == "" {
			*example = [2]string{o.r.endpoints[p.from].Name, o.r.endpoints[p.to].Name}
		}
	}
	return out
}
