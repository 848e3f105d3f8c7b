package reachability

import (
	"cmp"
	"errors"
	"iter"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// Side is a row or column of an Overview: endpoints that are shown as one.
type Side struct {
	Namespace string // empty for addresses
	Name      string // within the namespace; empty for the whole namespace
	Members   []Endpoint
	// Replicated is set if more pods like the members may be created. The cell of the side
	// with itself is then about two of its pods, even if it has only one.
	Replicated bool
	// Outside is set if the members are addresses outside of the cluster, which stand for all.
	Outside bool
	// Ports are the ports of a destination to look at; empty means all.
	Ports []Port
	// LeftOut says why other pods of it cannot be asked about.
	LeftOut []error
}

// String returns "namespace/name", or whichever of them is set.
func (s *Side) String() string {
	if s.Namespace == "" || s.Name == "" {
		return s.Namespace + s.Name
	}
	return s.Namespace + "/" + s.Name
}

// Outside returns the side of all addresses outside of the cluster that pods may have
// connections with in a family, except translated ones, which no packet has when policies see
// it. Its members have the names of ExternalRanges.
func (c *Cluster) Outside(family Family, translated Translated) Side {
	side := Side{Name: "outside", Replicated: true, Outside: true}
	names := ExternalRanges(translated, c)
	for _, name := range ExternalAddresses(translated, c) {
		if e := c.at(names[name], netip.MustParseAddr(name)); e.has(family) {
			side.Members = append(side.Members, e)
		}
	}
	return side
}

// Members returns the endpoints of pods, ordered by name, and why others have none. Pods that have
// ended do not count. If none has an endpoint, that is an error.
func (c *Cluster) Members(pods []*corev1.Pod) (members []Endpoint, leftOut []error, err error) {
	var ended error
	for _, pod := range pods {
		all, err := c.Endpoints(pod.Namespace + "/" + pod.Name)
		switch {
		case err == nil:
			members = append(members, all...)
		case compile.Ended(pod):
			ended = err
		default:
			leftOut = append(leftOut, err)
		}
	}
	if len(members) == 0 {
		return nil, nil, errors.Join(append(leftOut, ended)...)
	}
	slices.SortStableFunc(members, func(a, b Endpoint) int { return strings.Compare(a.Name, b.Name) })
	return members, leftOut, nil
}

// Sides groups pods into sides, ordered by namespace and name. sideOf returns the side of a
// pod, without members.
func (c *Cluster) Sides(pods []Endpoint, sideOf func(*corev1.Pod) Side) []Side {
	index := map[[2]string]int{}
	var sides []Side
	for _, p := range pods {
		side := sideOf(c.pods[p.Name])
		key := [2]string{side.Namespace, side.Name}
		i, known := index[key]
		if !known {
			i = len(sides)
			index[key] = i
			sides = append(sides, side)
		}
		sides[i].Members = append(sides[i].Members, p)
	}
	slices.SortStableFunc(sides, func(a, b Side) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return sides
}

// Overview reports for each pair of From and To which ports the members of one reach on the
// members of the other.
type Overview struct {
	From, To []Side
	// Port is the only port that was looked at, or zero for all. If it is set, the set of a
	// cell contains all ports or none.
	Port Port

	r          *Reach
	rows       [][]part    // of From
	columns    [][]part    // of To
	crowds     [2][]*crowd // of From and To
	every, any []int32     // row by row
}

// part is a set of members of a side that policies treat alike, as indexes into
// Reach.endpoints. They may be on different nodes.
type part []int

// Overview evaluates all pairs of sides. A zero port stands for all ports.
func (c *Cluster) Overview(from, to []Side, port Port, family Family) *Overview {
	var endpoints []Endpoint
	index := map[string]int{}
	for _, side := range slices.Concat(from, to) {
		for _, m := range side.Members {
			if number(index, m.Label()) == len(endpoints) {
				endpoints = append(endpoints, m)
			}
		}
	}
	o := &Overview{From: from, To: to, Port: port, r: c.Reach(endpoints, family)}
	o.rows, o.columns = o.parts(from, index), o.parts(to, index)
	for i, parts := range [][][]part{o.rows, o.columns} {
		for _, p := range parts {
			o.crowds[i] = append(o.crowds[i], newCrowd(o.r, p))
		}
	}
	for row := range from {
		for column := range to {
			every, any := o.evaluate(row, column)
			o.every, o.any = append(o.every, every), append(o.any, any)
		}
	}
	return o
}

// Only returns the overview of one cell and one port. It costs little, because it shares what has been
// evaluated.
func (o *Overview) Only(row, column int, port Port) *Overview {
	cell := &Overview{
		From: o.From[row : row+1], To: o.To[column : column+1], Port: port, r: o.r,
		rows: o.rows[row : row+1], columns: o.columns[column : column+1],
		crowds: [2][]*crowd{o.crowds[0][row : row+1], o.crowds[1][column : column+1]},
	}
	every, any := cell.evaluate(0, 0)
	cell.every, cell.any = []int32{every}, []int32{any}
	return cell
}

func (o *Overview) parts(sides []Side, index map[string]int) [][]part {
	all := make([][]part, len(sides))
	for i, side := range sides {
		classes := map[int]int{} // index of a class's part
		for _, m := range side.Members {
			at := index[m.Label()]
			p := &o.r.places[at]
			if j, known := classes[p.class]; known && p.pod != nil {
				all[i][j] = append(all[i][j], at)
				continue
			}
			classes[p.class] = len(all[i])
			all[i] = append(all[i], part{at})
		}
	}
	return all
}

// evaluate returns the ports that every pair of members may use, and those that any pair
// may use.
func (o *Overview) evaluate(row, column int) (every, any int32) {
	if o.From[row].Outside && o.To[column].Outside {
		return noPorts, noPorts // what does not pass the cluster
	}
	a, b, server := o.crowds[0][row], o.crowds[1][column], &o.To[column]
	if a != nil && b != nil && o.Port.Name == "" && len(server.Ports) == 0 {
		if every, any, ok := a.between(b); ok {
			return o.narrow(every, server, &server.Members[0]), o.narrow(any, server, &server.Members[0])
		}
	}
	every, any = allPorts, noPorts
	for set := range o.pairs(row, column) {
		every, any = o.r.sets.intersect(every, set.ports), o.r.sets.union(any, set.ports)
	}
	return every, any
}

// pair is the ports that a member of one side may use on a member of another, and the
// number of pairs like it.
type pair struct {
	from, to int // indexes into Reach.endpoints
	ports    int32
	count    int
}

// pairs yields the pairs of two sides; pairs that are alike are yielded once with their
// count. A pod and itself are a pair only if there is no other, or if it may be at several places, as
// another pod of its kind may be at the same one.
func (o *Overview) pairs(row, column int) func(yield func(pair) bool) {
	single := len(o.From[row].Members)*len(o.To[column].Members) == 1
	return func(yield func(pair) bool) {
		for _, a := range o.rows[row] {
			for _, b := range o.columns[column] {
				for from, to := range o.expand(a, b) {
					same := a[0] == b[0] && len(from) == len(to)
					if same && len(from) == 1 && !single && o.r.endpoints[from[0]].places < 2 {
						continue
					}
					p := pair{from: from[0], to: to[0], count: len(from) * len(to)}
					if same && p.count > 1 {
						p.count -= len(from)
						p.to = to[1]
					}
					set := o.r.between(p.from, p.to, o.several(row, column))
					p.ports = o.narrow(set, &o.To[column], &o.r.endpoints[p.to])
					if !yield(p) {
						return
					}
				}
			}
		}
	}
}

// several reports whether a pod in both sides represents several pods.
func (o *Overview) several(row, column int) bool {
	return o.From[row].Replicated || o.To[column].Replicated
}

// expand yields the pairs of two parts that must be evaluated separately: connections
// between a node and a pod depend on the pod's node.
func (o *Overview) expand(a, b part) iter.Seq2[part, part] {
	return func(yield func(from, to part) bool) {
		if !o.r.endpoints[a[0]].onHost() && !o.r.endpoints[b[0]].onHost() {
			yield(a, b)
			return
		}
		for i := range a {
			for j := range b {
				if !yield(a[i:i+1], b[j:j+1]) {
					return
				}
			}
		}
	}
}

// narrow restricts a set to the ports that are looked at.
func (o *Overview) narrow(set int32, to *Side, dst *Endpoint) int32 {
	if o.Port != (Port{}) {
		if number, ok := o.Port.numberOn(dst); ok && o.r.sets.all[set].Has(o.Port.Proto, number) {
			return allPorts
		}
		return noPorts
	}
	if len(to.Ports) == 0 {
		return set
	}
	var only []PortRange
	for _, p := range to.Ports {
		if number, ok := p.numberOn(dst); ok {
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

// Cell returns a key that is the same for equal cells.
func (o *Overview) Cell(row, column int) [2]int32 {
	at := row*len(o.To) + column
	return [2]int32{o.every[at], o.any[at]}
}

// Partial describes how the pairs of two sides differ.
type Partial struct {
	Pairs    int       // number of pairs, each at one place
	Reaching int       // number of pairs that may use all ports that any may use
	With     [2]string // labels of an example of these, source and destination
	Without  [2]string // an example of the remaining pairs
	Lacking  []string  // labels of the destinations of all remaining pairs with the source of the example
	// Depends says where the ends of that example must be to reach them, if addresses that are not known
	// decide it.
	Depends string
}

// Partial describes how the pairs of a cell differ.
func (o *Overview) Partial(row, column int) Partial {
	var out Partial
	any := o.any[row*len(o.To)+column]
	var without pair
	for p := range o.pairs(row, column) {
		example, count := &out.Without, p.count
		if o.r.endpoints[p.from].another || o.r.endpoints[p.to].another {
			count = 0
		}
		if p.ports == any {
			out.Reaching += count
			example = &out.With
		}
		out.Pairs += count
		if example[0] == "" {
			if p.ports != any {
				without = p
			}
			*example = [2]string{o.r.endpoints[p.from].Label(), o.r.endpoints[p.to].Label()}
		}
		if p.ports != any && p.from == without.from {
			out.Lacking = append(out.Lacking, o.r.endpoints[p.to].Label())
		}
	}
	if out.Without[0] != "" {
		out.Depends = o.depends(row, column, without)
	}
	return out
}

// depends explains how the ports of two pods depend on where they are, "" if they do not.
func (o *Overview) depends(row, column int, p pair) string {
	any := o.any[row*len(o.To)+column]
	var all []result
	for _, from := range o.placesOf(p.from) {
		for _, to := range o.placesOf(p.to) {
			set := o.narrow(o.r.between(from, to, o.several(row, column)), &o.To[column], &o.r.endpoints[to])
			all = append(all, result{o.r.endpoints[from], o.r.endpoints[to], set == any})
		}
	}
	return strings.Join(dependence(all, "reached", "not"), ", ")
}

// placesOf returns the endpoints that are an endpoint at the places where it may be: they follow each
// other.
func (o *Overview) placesOf(e int) (all []int) {
	if o.r.endpoints[e].places < 2 {
		return []int{e}
	}
	for o.r.endpoints[e].another {
		e--
	}
	for i := range o.r.endpoints[e].places {
		all = append(all, e+i)
	}
	return all
}
