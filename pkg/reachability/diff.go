package reachability

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Difference is what changes between two clusters.
type Difference struct {
	Checked  []PortRange `json:"checked"`  // the traffic that was compared
	Pods     int         `json:"pods"`     // how many were compared, without NewPods
	NewPods  []string    `json:"newPods"`  // those of AddNewPods that were also compared
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

	// Lost and Gained have the cells that change to denied and to allowed, of the endpoints
	// that some of them is about.
	Lost, Gained *Matrix `json:"-"`
}

// Cell is a connection that changes. One from a pod to itself is to another pod like it,
// which its workload may make: a pod always reaches itself.
type Cell struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Allowed bool   `json:"allowed"` // afterwards
}

// Compare returns what changes from before to after, for the pods that are in both
// and for addresses, in the order of spans. With namespaces, only connections of their
// pods are compared. Traffic that changes alike is one Change.
func Compare(before, after *Cluster, spans []PortRange, addresses []string, family Family, namespaces ...string) (Difference, error) {
	d := Difference{Checked: spans, NewPods: []string{}, Nodes: []string{}, External: []string{}, Changes: []Change{}}
	d.DomainRules = slices.Compact(slices.Sorted(slices.Values(append(before.DomainRules(), after.DomainRules()...))))
	d.OnlyBefore, d.OnlyAfter = unshared(before, after, family, namespaces), unshared(after, before, family, namespaces)
	var c comparison
	for _, s := range before.Pods(family) {
		other, both := after.endpoints[s.Name]
		if !both || !other.has(family) {
			continue
		}
		here := in(before.pods[s.Name], namespaces)
		c.add(s, other, here, isNewPod(s.Name) || before.alone(s.Name, after))
		switch {
		case !here:
		case isNewPod(s.Name):
			d.NewPods = append(d.NewPods, s.Name)
		default:
			d.Pods++
		}
	}
	for _, name := range addresses {
		b, err := before.Endpoint(name)
		if err != nil {
			return Difference{}, err
		}
		a, err := after.Endpoint(name)
		if err != nil {
			return Difference{}, err
		}
		c.add(b, a, false, false)
		if a.Kind == Node || b.Kind == Node {
			d.Nodes = append(d.Nodes, name)
		} else {
			d.External = append(d.External, name)
		}
	}
	c.was, c.is = before.Reach(c.before, family), after.Reach(c.after, family)
	d.Changes = c.changes(spans)
	return d, nil
}

// in reports whether a pod is in one of namespaces, if there are any.
func in(pod *corev1.Pod, namespaces []string) bool {
	return len(namespaces) == 0 || slices.Contains(namespaces, pod.Namespace)
}

// comparison is endpoints in two clusters.
type comparison struct {
	before, after []Endpoint // in the same order
	was, is       *Reach     // of before and of after
	here          []bool     // whether all connections of the endpoint are compared
	twin          []bool     // whether an endpoint and itself are two pods that are alike
}

func (c *comparison) add(before, after Endpoint, here, twin bool) {
	c.before, c.after = append(c.before, before), append(c.after, after)
	c.here, c.twin = append(c.here, here), append(c.twin, twin)
}

// alone reports whether a pod with a network of its own is the only one of its controller,
// in both clusters.
func (c *Cluster) alone(name string, other *Cluster) bool {
	if s := c.endpoints[name]; s.Kind != Pod {
		return false
	}
	owner := c.owner(name)
	return owner != "" && c.owned[owner] == 1 && other.owned[other.owner(name)] == 1
}

// owner returns the controller of a pod, empty if it has none.
func (c *Cluster) owner(name string) string {
	pod := c.pods[name]
	if o := metav1.GetControllerOfNoCopy(pod); o != nil {
		return pod.Namespace + "/" + o.Kind + "/" + o.Name
	}
	return ""
}

// unshared returns the names of the pods of c that other does not have.
func unshared(c, other *Cluster, family Family, namespaces []string) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.endpoints)) {
		s, o := c.endpoints[name], other.endpoints[name]
		if s.has(family) && !o.has(family) && in(c.pods[name], namespaces) {
			names = append(names, name)
		}
	}
	return names
}

// changes returns what differs.
func (c *comparison) changes(spans []PortRange) []Change {
	found := []Change{}
	numbers := slices.DeleteFunc(slices.Clone(spans), func(s PortRange) bool { return s.Name != "" })
	if len(numbers) > 0 {
		found = c.differences(Port{}).changes(c.after, numbers)
	}
	for _, s := range spans {
		if s.Name != "" {
			found = append(found, c.differences(s.Port()).changes(c.after, []PortRange{s})...)
		}
	}
	return found
}

// transition is what some pairs may use before and after.
type transition struct {
	was, is PortSet
	pairs   []int // row by row
}

type transitions []*transition

// differences returns the transitions of all pairs that change. Of a named port, sets have all
// ports or none.
func (c *comparison) differences(named Port) transitions {
	var found transitions
	at := map[[2]int32]*transition{}
	for i := range c.before {
		for j := range c.before {
			if !c.here[i] && !c.here[j] {
				continue
			}
			twin := i == j && c.twin[i]
			was, is := c.was.use(i, j, named, twin), c.is.use(i, j, named, twin)
			t, seen := at[[2]int32{was, is}]
			if !seen {
				t = &transition{was: c.was.sets.all[was], is: c.is.sets.all[is]}
				at[[2]int32{was, is}] = t
				if !slices.Equal(t.was.ranges, t.is.ranges) {
					found = append(found, t)
				}
			}
			if !slices.Equal(t.was.ranges, t.is.ranges) {
				t.pairs = append(t.pairs, i*len(c.before)+j)
			}
		}
	}
	return found
}

// use returns the place of what i reaches of j: if port has a name, all or nothing. With
// twin, an endpoint and itself are two that are alike.
func (r *Reach) use(i, j int, port Port, twin bool) int32 {
	set := r.between(i, j, twin)
	if port.Name == "" {
		return set
	}
	if number, ok := port.on(&r.endpoints[j]); ok && r.sets.all[set].Has(port.Proto, number) {
		return allPorts
	}
	return noPorts
}

// changes returns the changes of spans. Those that change alike are one.
func (t transitions) changes(endpoints []Endpoint, spans []PortRange) []Change {
	var found []Change
	alike := map[string]int{}
	for _, span := range spans {
		key := make([]byte, len(t))
		for i, c := range t {
			was, is := c.was.Has(span.Proto, span.First), c.is.Has(span.Proto, span.First)
			if span.Name != "" {
				was, is = c.was.All(), c.is.All()
			}
			if was != is {
				key[i] = mark(is)
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
		found = append(found, t.change(endpoints, span, key))
	}
	return found
}

func mark(gained bool) byte {
	if gained {
		return '+'
	}
	return '-'
}

// change returns the change of a span. Marks has a byte for each transition, zero for none.
func (t transitions) change(endpoints []Endpoint, span PortRange, marks []byte) Change {
	c := Change{Traffic: []PortRange{span}}
	gained := map[int]bool{} // of each pair
	at := make([]int, len(endpoints))
	for i, of := range t {
		if marks[i] == 0 {
			continue
		}
		for _, p := range of.pairs {
			gained[p] = marks[i] == mark(true)
			at[p/len(endpoints)], at[p%len(endpoints)] = 1, 1
		}
	}
	var changing []Endpoint // the matrices have no others
	for i := range endpoints {
		if at[i] == 1 {
			at[i] = len(changing)
			changing = append(changing, endpoints[i])
		}
	}
	c.Lost, c.Gained = newMatrix(span.Port(), changing), newMatrix(span.Port(), changing)
	for _, p := range slices.Sorted(maps.Keys(gained)) {
		from, to := p/len(endpoints), p%len(endpoints)
		into := c.Lost
		if gained[p] {
			into = c.Gained
		}
		into.allowed[at[from]*len(changing)+at[to]] = true
		c.Cells = append(c.Cells, Cell{endpoints[from].Name, endpoints[to].Name, gained[p]})
	}
	return c
}

func newMatrix(port Port, endpoints []Endpoint) *Matrix {
	return &Matrix{Port: port, From: endpoints, To: endpoints, allowed: make([]bool, len(endpoints)*len(endpoints))}
}
