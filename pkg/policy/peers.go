package policy

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// peerTable finds the rules whose peers select who the peer is: a pod, a node or
// the holder of a domain name. Each selector is found by one thing that it needs
// its peer to have, so that only few are evaluated for any peer.
type peerTable struct {
	items  []peerItem
	loose  candidates                      // items that need nothing a peer has
	reads  [traitKinds]map[string]*readKey // all that items read of a peer
	traits uint32                          // how many these are: they are numbered
	by     []*candidates                   // for each number the items that need it, nil for none

	pods, nodes, domains bool // which kinds of items there are
	compares             bool // some item compares values of labels as numbers
}

// peerItem is one selector and the rules that have it.
type peerItem struct {
	peer  Peer
	rules []uint32
	cost  int
}

// candidates are items to evaluate, and what that costs.
type candidates struct {
	items []uint32
	cost  int
}

// traitKind is a kind of what a peer may have.
type traitKind uint8

const (
	namespaceName traitKind = iota
	namespaceKnown
	podLabel
	namespaceLabel
	nodeLabel
	domain
	belowDomain

	traitKinds = iota
)

// readKey is the key of a label or a name that items read, and the values that they have
// for it. Each is a trait and has a number.
type readKey struct {
	number uint32
	values map[string]uint32
}

// selectorText identifies a selector.
type selectorText struct {
	of         traitKind
	key, value string
}

// newPeerTable returns nil if no rule selects pods, nodes or domains.
func newPeerTable(rules []Rule) *peerTable {
	t := &peerTable{}
	known := make(map[selectorText]uint32)
	for i := range rules {
		if rules[i].AnyPeer {
			continue
		}
		for j := range rules[i].Peers {
			t.addPeer(known, &rules[i].Peers[j], uint32(i))
		}
	}
	if len(t.items) == 0 {
		return nil
	}
	t.file()
	return t
}

func (t *peerTable) addPeer(known map[selectorText]uint32, p *Peer, rule uint32) {
	switch {
	case p.selectsNothing():
	case p.Pods != nil:
		s := p.Pods
		name := selectorText{of: podLabel, key: s.Namespace, value: s.Pods.String()}
		if s.Namespace == "" {
			name.of, name.key = namespaceLabel, s.Namespaces.String()
		}
		t.pods = true
		t.add(known, name, Peer{Pods: s}, rule)
	case p.Nodes != nil:
		t.nodes = true
		t.add(known, selectorText{of: nodeLabel, value: p.Nodes.String()}, Peer{Nodes: p.Nodes}, rule)
	default:
		for i, d := range p.Domains {
			name := selectorText{of: domain, value: d.Name}
			if d.Below {
				name.of = belowDomain
			}
			t.domains = true
			t.add(known, name, Peer{Domains: p.Domains[i : i+1 : i+1]}, rule)
		}
	}
}

// selectsNothing reports whether a selector matches nothing. Its text is that of a
// selector that matches everything.
func (p *Peer) selectsNothing() bool {
	nothing := func(s labels.Selector) bool { return s != nil && labels.MatchesNothing(s) }
	return nothing(p.Nodes) || p.Pods != nil && (nothing(p.Pods.Pods) || nothing(p.Pods.Namespaces))
}

// add adds a rule to the item of a peer, which is known by name.
func (t *peerTable) add(known map[selectorText]uint32, name selectorText, p Peer, rule uint32) {
	n, ok := known[name]
	if !ok {
		n = uint32(len(t.items))
		known[name] = n
		t.items = append(t.items, peerItem{peer: p})
	}
	item := &t.items[n]
	if rules := len(item.rules); rules == 0 || item.rules[rules-1] != rule {
		item.rules = append(item.rules, rule)
	}
}

// file puts each item under that of its needs which the fewest items share.
func (t *peerTable) file() {
	needs := make([][][]uint32, len(t.items))
	for i := range t.items {
		item := &t.items[i]
		needs[i], item.cost = t.needs(&item.peer)
		item.cost += len(item.rules)
	}
	shared := make([]int, t.traits)
	for _, all := range needs {
		for _, oneOf := range all {
			for _, need := range oneOf {
				shared[need]++
			}
		}
	}
	t.by = make([]*candidates, t.traits)
	for i, all := range needs {
		t.fileBest(shared, all, uint32(i))
	}
}

// fileBest puts an item under one of its needs or, if it has none, among the loose ones.
func (t *peerTable) fileBest(shared []int, needs [][]uint32, item uint32) {
	cost := t.items[item].cost
	if len(needs) == 0 {
		t.loose.add(item, cost)
		return
	}
	best, fewest := needs[0], -1
	for _, oneOf := range needs {
		n := 0
		for _, need := range oneOf {
			n += shared[need]
		}
		if fewest < 0 || n < fewest {
			best, fewest = oneOf, n
		}
	}
	for _, need := range best {
		if t.by[need] == nil {
			t.by[need] = &candidates{}
		}
		t.by[need].add(item, cost)
	}
}

func (c *candidates) add(item uint32, cost int) {
	c.items = append(c.items, item)
	c.cost += cost
}

// number numbers the next trait.
func (t *peerTable) number() uint32 {
	t.traits++
	return t.traits - 1
}

// read notes that items read a key or a name.
func (t *peerTable) read(of traitKind, key string) *readKey {
	if t.reads[of] == nil {
		t.reads[of] = make(map[string]*readKey)
	}
	k := t.reads[of][key]
	if k == nil {
		k = &readKey{number: t.number()}
		t.reads[of][key] = k
	}
	return k
}

// readValues notes that items have values for k, and returns their numbers.
func (t *peerTable) readValues(k *readKey, values []string) []uint32 {
	if k.values == nil {
		k.values = make(map[string]uint32, len(values))
	}
	numbers := make([]uint32, len(values))
	for i, v := range values {
		n, ok := k.values[v]
		if !ok {
			n = t.number()
			k.values[v] = n
		}
		numbers[i] = n
	}
	slices.Sort(numbers)
	return slices.Compact(numbers) // API servers accept a value that is repeated
}

// needs returns what p needs a peer to have: of each list one. The cost is that of
// evaluating p, about as many comparisons. All that p reads of a peer gets a number.
func (t *peerTable) needs(p *Peer) (all [][]uint32, cost int) {
	switch {
	case p.Nodes != nil:
		return t.labelNeeds(nil, p.Nodes, nodeLabel)
	case p.Domains != nil:
		d := p.Domains[0]
		of := domain
		if d.Below {
			of = belowDomain
		}
		return [][]uint32{{t.read(of, d.Name).number}}, 1
	}
	all, cost = t.labelNeeds(nil, p.Pods.Pods, podLabel)
	if p.Pods.Namespace != "" {
		return append(all, []uint32{t.read(namespaceName, p.Pods.Namespace).number}), cost
	}
	if !p.Pods.Namespaces.Empty() {
		t.read(namespaceKnown, "")
	}
	all, more := t.labelNeeds(all, p.Pods.Namespaces, namespaceLabel)
	return all, cost + more
}

// labelNeeds appends what s needs.
func (t *peerTable) labelNeeds(all [][]uint32, s labels.Selector, of traitKind) (_ [][]uint32, cost int) {
	requirements, _ := s.Requirements()
	cost = 1
	for i := range requirements {
		r := &requirements[i]
		values := r.ValuesUnsorted()
		cost += 1 + len(values)
		key := t.read(of, r.Key())
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			all = append(all, t.readValues(key, values))
		case selection.NotIn, selection.NotEquals:
			t.readValues(key, values)
		case selection.Exists:
			all = append(all, []uint32{key.number})
		case selection.GreaterThan, selection.LessThan:
			all = append(all, []uint32{key.number})
			t.compares = true
		}
	}
	return all, cost
}

// peer is who a packet's peer is.
type peer struct {
	pod   *Endpoint
	node  *Host
	names *Names
	scope scope
}

// traitsOf calls yield with everything that p has and t reads.
func (t *peerTable) traitsOf(p peer, yield func(uint32)) {
	if p.pod != nil {
		t.traitsOfPod(p.pod, yield)
	}
	if p.node != nil {
		for _, node := range *p.node {
			for k, v := range node {
				t.traitsOfLabel(nodeLabel, k, v, yield)
			}
		}
	}
	if p.names != nil {
		for _, name := range *p.names {
			t.traitOfName(domain, name, yield)
			for above := name; ; {
				_, below, ok := strings.Cut(above, ".")
				if !ok {
					break
				}
				t.traitOfName(belowDomain, below, yield)
				above = below
			}
		}
	}
}

// traitsOfPod is traitsOf a pod.
func (t *peerTable) traitsOfPod(e *Endpoint, yield func(uint32)) {
	t.traitOfName(namespaceName, e.Namespace, yield)
	if len(t.reads[podLabel]) > 0 {
		for k, v := range e.Labels.All() {
			t.traitsOfLabel(podLabel, k, v, yield)
		}
	}
	if e.NamespaceLabels.Known() {
		t.traitOfName(namespaceKnown, "", yield)
	}
	if len(t.reads[namespaceLabel]) > 0 {
		for k, v := range e.NamespaceLabels.All() {
			t.traitsOfLabel(namespaceLabel, k, v, yield)
		}
	}
}

func (t *peerTable) traitsOfLabel(of traitKind, k, v string, yield func(uint32)) {
	key := t.reads[of][k]
	if key == nil {
		return
	}
	yield(key.number)
	if n, ok := key.values[v]; ok {
		yield(n)
	}
}

func (t *peerTable) traitOfName(of traitKind, name string, yield func(uint32)) {
	if key := t.reads[of][name]; key != nil {
		yield(key.number)
	}
}

// size is the number of traits of p, about.
func (t *peerTable) size(p peer) int {
	n := 0
	if t.pods && p.pod != nil {
		n += 1 + 2*p.pod.Labels.Len() + 2*p.pod.NamespaceLabels.Len()
	}
	if t.nodes && p.node != nil {
		for _, node := range *p.node {
			n += 2 * len(node)
		}
	}
	if t.domains && p.names != nil {
		for _, name := range *p.names {
			n += 1 + strings.Count(name, ".")
		}
	}
	return n
}

// cost returns what evaluating p costs, in comparisons, or more than limit.
func (t *peerTable) cost(p peer, limit int) int {
	cost := t.loose.cost + t.size(p)/4
	if cost > limit {
		return cost
	}
	t.traitsOf(p, func(n uint32) {
		if c := t.by[n]; c != nil {
			cost += c.cost
		}
	})
	return cost
}

// evaluate returns the rules that select p.
func (t *peerTable) evaluate(p peer) set {
	f := &flow{peer: p.pod, host: p.node, names: p.names, scope: p.scope}
	var rules []uint32
	ask := func(c *candidates) {
		for _, n := range c.items {
			if item := &t.items[n]; item.peer.matches(f) {
				rules = append(rules, item.rules...)
			}
		}
	}
	ask(&t.loose)
	t.traitsOf(p, func(n uint32) {
		if c := t.by[n]; c != nil {
			ask(c)
		}
	})
	return newSet(rules)
}
