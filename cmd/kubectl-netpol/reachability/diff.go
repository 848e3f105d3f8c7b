package reachability

import (
	"cmp"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// Difference is the difference between two clusters.
type Difference struct {
	Checked  []PortRange `json:"checked"`  // the compared traffic
	Pods     int         `json:"pods"`     // number of compared pods of both clusters without NewPods
	NewPods  []string    `json:"newPods"`  // the compared pods that AddNewPods added
	Nodes    []string    `json:"nodes"`    // the compared addresses of nodes
	External []string    `json:"external"` // the compared external addresses
	// AllOutside says that External are named ranges, and all that there are.
	AllOutside bool `json:"-"`
	// Services names by address the Services behind which compared addresses are.
	Services map[string]string `json:"services,omitempty"`
	Changes  []Change          `json:"changes"`
	// DomainRules are the rules of both clusters whose domain names match no address here.
	DomainRules []string `json:"domainRules,omitempty"`
	// OnlyBefore and OnlyAfter are pods of one of the clusters: all of their connections are
	// changes.
	OnlyBefore []string `json:"onlyBefore,omitempty"`
	OnlyAfter  []string `json:"onlyAfter,omitempty"`
	// NotCompared are pods whose connections are not known, or not asked for.
	NotCompared []string `json:"notCompared,omitempty"`
}

// Whole reports whether all connections were compared.
func (d *Difference) Whole() bool { return len(d.DomainRules)+len(d.NotCompared) == 0 }

// Change is a set of connections that change in the same way for some traffic.
type Change struct {
	Traffic []PortRange
	// Lost and Gained are matrices of the affected endpoints with the cells that become denied
	// and allowed.
	Lost, Gained *Matrix
	// Outside are the names of all ranges outside, if these were compared.
	Outside []string
	// By returns the policies that change a cell of these: those that differ between the clusters, else
	// all that decide about it.
	By func(row, column int) []string
}

// Cells returns the connections that change.
func (c *Change) Cells() []Cell {
	var cells []Cell
	for i := range c.Lost.From {
		for j := range c.Lost.To {
			if gained := c.Gained.Allowed(i, j); gained || c.Lost.Allowed(i, j) {
				cells = append(cells, Cell{c.Lost.From[i].Label(), c.Lost.To[j].Label(), gained, c.By(i, j)})
			}
		}
	}
	return cells
}

// MarshalJSON renders the traffic and the cells.
func (c Change) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Traffic []PortRange `json:"traffic"`
		Cells   []Cell      `json:"cells"`
	}{c.Traffic, c.Cells()})
}

// Cell is a connection that changes. If From equals To, the connection is to another pod
// like it that its workload may create: a pod always reaches itself.
type Cell struct {
	From    string   `json:"from"`
	To      string   `json:"to"`
	Allowed bool     `json:"allowed"`      // after the change
	By      []string `json:"by,omitempty"` // see Change.By
}

// Names are the names of what a Difference shows. The zero value shows every pod and every
// address by its own name.
type Names struct {
	// Pod returns the name of what has a pod. Pods of one name that policies treat alike in both
	// clusters are shown as one.
	Pod func(*corev1.Pod) string
	// Addresses are the names of compared addresses.
	Addresses map[string]string
}

// Compare returns the changes from before to after, in the order of spans, between their pods
// and addresses, by names. A pod that only one cluster has reaches nothing in the other. If namespaces
// are given, it compares only connections of their pods. Traffic with the same changes is one
// Change.
func Compare(names Names, before, after *Cluster, spans []PortRange, addresses []string, family Family, namespaces ...string) (Difference, error) {
	d := Difference{Checked: spans, NewPods: []string{}, Nodes: []string{}, External: []string{}, Changes: []Change{}}
	d.DomainRules = sortedUnion(before.DomainRules(), after.DomainRules())
	d.NotCompared = sortedUnion(before.unaddressed(namespaces), after.unaddressed(namespaces))
	var c comparison
	d.comparePods(&c, before, after, family, namespaces)
	if err := d.compareAddresses(&c, names, before, after, addresses); err != nil {
		return Difference{}, err
	}
	c.reachBefore, c.reachAfter = before.Reach(c.before, family), after.Reach(c.after, family)
	c.same, c.family = newSameness(before, after), family
	c.group(names, c.same)
	for _, list := range []*[]string{&d.OnlyBefore, &d.OnlyAfter, &d.NotCompared} {
		*list = names.ofPods(*list, before, after)
	}
	d.Changes, d.AllOutside = c.changes(spans), names.Addresses != nil
	for i := range d.Changes {
		for _, name := range addresses {
			if shown := names.Addresses[name]; shown != "" {
				d.Changes[i].Outside = append(d.Changes[i].Outside, shown)
			}
		}
	}
	return d, nil
}

// comparePods adds the pods of both clusters to c.
func (d *Difference) comparePods(c *comparison, before, after *Cluster, family Family, namespaces []string) {
	places := placesOf(before, after)
	for _, name := range sortedUnion(before.podNames(family), after.podNames(family)) {
		if slices.Contains(d.NotCompared, name) {
			continue
		}
		was, is := before.endpoints[name], after.endpoints[name]
		pod := before.pods[name]
		if !was.has(family) {
			pod = after.pods[name]
		}
		selected := in(pod, namespaces)
		c.addAt(places.at(was), places.at(is), selected, IsNewName(name) || isOnlyReplica(name, before, after))
		switch {
		case !selected:
		case IsNewName(name):
			d.NewPods = append(d.NewPods, name)
		case !is.has(family):
			d.OnlyBefore = append(d.OnlyBefore, name)
		case !was.has(family):
			d.OnlyAfter = append(d.OnlyAfter, name)
		default:
			d.Pods++
		}
	}
}

// compareAddresses adds addresses to c, which are those of nodes or outside of the clusters.
func (d *Difference) compareAddresses(c *comparison, names Names, before, after *Cluster, addresses []string) error {
	for _, name := range addresses {
		b, err := before.Endpoint(name)
		if err != nil {
			return err
		}
		a, err := after.Endpoint(name)
		if err != nil {
			return err
		}
		c.add(b, a, false, false)
		if a.Kind == Node || b.Kind == Node {
			d.Nodes = append(d.Nodes, name)
		} else {
			d.External = append(d.External, cmp.Or(names.Addresses[name], name))
		}
	}
	return nil
}

// sortedUnion returns the texts of a and b, each once.
func sortedUnion(a, b []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b))))
}

// podNames returns the names of the pods that can be queried in a family.
func (c *Cluster) podNames(family Family) []string {
	var names []string
	for name, s := range c.endpoints {
		if s.has(family) {
			names = append(names, name)
		}
	}
	return names
}

// unaddressed returns the living pods that have no address of their own.
func (c *Cluster) unaddressed(namespaces []string) []string {
	var names []string
	for name, pod := range c.pods {
		if s := c.endpoints[name]; !s.first().IsValid() && !compile.Ended(pod) && in(pod, namespaces) {
			names = append(names, name)
		}
	}
	return names
}

// in reports whether a pod is in one of namespaces, or namespaces is empty.
func in(pod *corev1.Pod, namespaces []string) bool {
	return len(namespaces) == 0 || slices.Contains(namespaces, pod.Namespace)
}

// comparison is a list of endpoints in two clusters.
type comparison struct {
	before, after           []Endpoint // in the same order; without a name if the cluster has no such pod
	reachBefore, reachAfter *Reach
	selected                []bool // whether all connections of the endpoint are compared
	twin                    []bool // whether the endpoint stands for several identical pods
	groups                  []compared
	same                    *sameness
	family                  Family
}

func (c *comparison) add(before, after Endpoint, selected, twin bool) {
	c.before, c.after = append(c.before, before), append(c.after, after)
	c.selected, c.twin = append(c.selected, selected), append(c.twin, twin)
}

// addAt adds an endpoint at its places, which are the same in both clusters unless only one of them knows
// its address.
func (c *comparison) addAt(before, after []Endpoint, selected, twin bool) {
	for i := range max(len(before), len(after)) {
		c.add(before[i%len(before)], after[i%len(after)], selected, twin)
	}
}

// isOnlyReplica reports whether a pod with its own network is the only pod of its
// controller, in each of the clusters that has it.
func isOnlyReplica(name string, clusters ...*Cluster) bool {
	for _, c := range clusters {
		s, there := c.endpoints[name]
		if there && (s.Kind != Pod || c.owner(name) == "" || c.owned[c.owner(name)] != 1) {
			return false
		}
	}
	return true
}

// owner returns the controller of a pod, or "".
func (c *Cluster) owner(name string) string {
	pod := c.pods[name]
	if o := metav1.GetControllerOfNoCopy(pod); o != nil {
		return pod.Namespace + "/" + o.Kind + "/" + o.Name
	}
	return ""
}

// changes returns the changes of all spans.
func (c *comparison) changes(spans []PortRange) []Change {
	found := []Change{}
	numbers := slices.DeleteFunc(slices.Clone(spans), func(s PortRange) bool { return s.Name != "" })
	if len(numbers) > 0 {
		found = c.differences(Port{}).changes(c, numbers)
	}
	for _, s := range spans {
		if s.Name != "" {
			found = append(found, c.differences(s.Port()).changes(c, []PortRange{s})...)
		}
	}
	return found
}

// transition is a set of pairs whose allowed ports change in the same way.
type transition struct {
	before, after PortSet
	pairs         []int // row*columns + column, of groups
}

type transitions []*transition

// differences returns the transitions of all pairs that change. For a named port the sets
// contain all ports or none.
func (c *comparison) differences(named Port) transitions {
	var found transitions
	known := map[[2]int32]*transition{}
	all, changed := c.columns()
	for row := range c.groups {
		columns := changed
		if c.groups[row].changed {
			columns = all
		}
		for _, column := range columns {
			from, to := &c.groups[row], &c.groups[column]
			i, j := c.pair(from, to)
			if !c.selected[i] && !c.selected[j] {
				continue
			}
			itself := row == column || c.nameOf(i) == c.nameOf(j) // at another place
			twin := itself && from.twin
			if itself && !twin {
				continue // it always reaches itself
			}
			before, after := c.reachBefore.ports(i, j, named, twin), c.reachAfter.ports(i, j, named, twin)
			t, seen := known[[2]int32{before, after}]
			if !seen {
				t = &transition{before: c.reachBefore.sets.all[before], after: c.reachAfter.sets.all[after]}
				known[[2]int32{before, after}] = t
				if !slices.Equal(t.before.ranges, t.after.ranges) {
					found = append(found, t)
				}
			}
			if !slices.Equal(t.before.ranges, t.after.ranges) {
				t.pairs = append(t.pairs, row*len(c.groups)+column)
			}
		}
	}
	return found
}

// columns returns the indexes of all groups, and of those that changed: between two that did not,
// nothing changes.
func (c *comparison) columns() (all, changed []int) {
	for i := range c.groups {
		all = append(all, i)
		if c.groups[i].changed {
			changed = append(changed, i)
		}
	}
	return all, changed
}

// ports returns the number of the set of ports that i reaches on j. If port has a name, the
// set contains all ports or none. twin is as in between.
func (r *Reach) ports(i, j int, port Port, twin bool) int32 {
	if r.endpoints[i].Name == "" || r.endpoints[j].Name == "" {
		return noPorts // a pod that the cluster does not have
	}
	set := r.between(i, j, twin)
	if port.Name == "" {
		return set
	}
	if number, ok := port.numberOn(&r.endpoints[j]); ok && r.sets.all[set].Has(port.Proto, number) {
		return allPorts
	}
	return noPorts
}

// changes returns the changes of spans. Spans with the same changes are one Change.
func (t transitions) changes(c *comparison, spans []PortRange) []Change {
	var found []Change
	alike := map[string]int{}
	for _, span := range spans {
		key := make([]byte, len(t))
		for i, pairs := range t {
			before, after := pairs.before.Has(span.Proto, span.First), pairs.after.Has(span.Proto, span.First)
			if span.Name != "" {
				before, after = pairs.before.All(), pairs.after.All()
			}
			if before != after {
				key[i] = mark(after)
			}
		}
		if !slices.ContainsFunc(key, func(m byte) bool { return m != 0 }) {
			continue
		}
		if i, seen := alike[string(key)]; seen {
			found[i].Traffic = append(found[i].Traffic, span)
			continue
		}
		alike[string(key)] = len(found)
		found = append(found, t.change(c, span, key))
	}
	return found
}

func mark(gained bool) byte {
	if gained {
		return '+'
	}
	return '-'
}

// change returns the change of a span. marks has a byte for each transition, zero if the
// span does not change.
func (t transitions) change(compared *comparison, span PortRange, marks []byte) Change {
	c := Change{Traffic: []PortRange{span}}
	endpoints, gained := compared.shown(), map[int]bool{} // by pair
	index := make([]int, len(endpoints))
	for i, changed := range t {
		if marks[i] == 0 {
			continue
		}
		for _, p := range changed.pairs {
			gained[p] = marks[i] == mark(true)
		}
	}
	endpoints, gained = atOnce(endpoints, gained)
	for p := range gained {
		index[p/len(endpoints)], index[p%len(endpoints)] = 1, 1
	}
	var changing []Endpoint // the matrices contain only these
	var groups []int        // of changing
	for i := range endpoints {
		if index[i] == 1 {
			index[i] = len(changing)
			changing, groups = append(changing, endpoints[i]), append(groups, i)
		}
	}
	c.By = func(from, to int) []string { return compared.by(groups[from], groups[to], span.Port()) }
	c.Lost, c.Gained = newMatrix(span.Port(), changing), newMatrix(span.Port(), changing)
	for p, more := range gained {
		from, to := p/len(endpoints), p%len(endpoints)
		matrix := c.Lost
		if more {
			matrix = c.Gained
		}
		matrix.allowed[index[from]*len(changing)+index[to]] = true
	}
	return c
}

func newMatrix(port Port, endpoints []Endpoint) *Matrix {
	return &Matrix{Port: port, From: endpoints, To: endpoints, allowed: make([]bool, len(endpoints)*len(endpoints))}
}
