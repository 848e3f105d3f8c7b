package policy

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// peerTable finds the rules that select a peer as a pod, a node or the holder of a domain name.
// Each selector is filed under one trait that it requires, so only a few selectors are evaluated
// for any peer.
type peerTable struct {
	items  []peerItem
	loose  candidates                      // items that require no trait
	reads  [traitKinds]map[string]*readKey // everything that items read from a peer
	traits uint32                          // the number of traits that have been numbered
	filed  []*candidates                   // by trait number, the items filed under it; nil for none

	pods, nodes, domains bool // which kinds of items there are
	compares             bool // some item compares label values as numbers (Gt, Lt)
}

// peerItem is one selector and the rules that have it.
type peerItem struct {
	peer  Peer
	rules []uint32
	cost  int
}

// candidates are items to evaluate and the cost of doing so.
type candidates struct {
	items []uint32
	cost  int
}

// traitKind is a kind of trait: something that a peer may have.
type traitKind uint8

const (
	namespaceName traitKind = iota
	namespaceKnown
	account
	podLabel
	namespaceLabel
	nodeLabel
	domain
	belowDomain

	traitKinds = iota
)

// readKey is a label key or a name that items read, with the values that they compare it with. The
// key and each value are traits with a number.
type readKey struct {
	number uint32
	values map[string]uint32
}

// selectorText identifies a selector.
type selectorText struct {
	kind                 traitKind
	key, value, accounts string
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
	t.buildIndex()
	return t
}

func (t *peerTable) addPeer(known map[selectorText]uint32, p *Peer, rule uint32) {
	switch {
	case p.selectsNothing():
	case p.Pods != nil:
		s := p.Pods
		name := selectorText{kind: podLabel, key: s.Namespace, value: s.Pods.String(), accounts: strings.Join(s.Accounts, "/")}
		if s.Namespace == "" {
			name.kind, name.key = namespaceLabel, s.Namespaces.String()
		}
		t.pods = true
		t.add(known, name, Peer{Pods: s}, rule)
	case p.Nodes != nil:
		t.nodes = true
		t.add(known, selectorText{kind: nodeLabel, value: p.Nodes.String()}, Peer{Nodes: p.Nodes}, rule)
	default:
		for i, d := range p.Domains {
			name := selectorText{kind: domain, value: d.Name}
			if d.Below {
				name.kind = belowDomain
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

// add adds a rule to the item of a selector; known finds the item by the selector's text.
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

// buildIndex files each item under its rarest requirement.
func (t *peerTable) buildIndex() {
	needs := make([][][]uint32, len(t.items))
	for i := range t.items {
		item := &t.items[i]
		needs[i], item.cost = t.requirements(&item.peer)
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
	t.filed = make([]*candidates, t.traits)
	for i, all := range needs {
		t.fileRarest(shared, all, uint32(i))
	}
}

// fileRarest files an item under the requirement that the fewest items share, or among the loose
// items if it has none.
func (t *peerTable) fileRarest(shared []int, needs [][]uint32, item uint32) {
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
		if t.filed[need] == nil {
			t.filed[need] = &candidates{}
		}
		t.filed[need].add(item, cost)
	}
}

func (c *candidates) add(item uint32, cost int) {
	c.items = append(c.items, item)
	c.cost += cost
}

// nextNumber returns the number of a new trait.
func (t *peerTable) nextNumber() uint32 {
	t.traits++
	return t.traits - 1
}

// addKey records that items read a key or a name.
func (t *peerTable) addKey(kind traitKind, key string) *readKey {
	if t.reads[kind] == nil {
		t.reads[kind] = make(map[string]*readKey)
	}
	k := t.reads[kind][key]
	if k == nil {
		k = &readKey{number: t.nextNumber()}
		t.reads[kind][key] = k
	}
	return k
}

// addValues records the values that an item compares k with, and returns their numbers.
func (t *peerTable) addValues(k *readKey, values []string) []uint32 {
	if k.values == nil {
		k.values = make(map[string]uint32, len(values))
	}
	numbers := make([]uint32, len(values))
	for i, v := range values {
		n, ok := k.values[v]
		if !ok {
			n = t.nextNumber()
			k.values[v] = n
		}
		numbers[i] = n
	}
	slices.Sort(numbers)
	return slices.Compact(numbers) // API servers accept repeated values
}

// requirements returns what p requires: one trait of each list. The cost is about the number of
// comparisons that evaluating p takes. It numbers everything that p reads from a peer.
func (t *peerTable) requirements(p *Peer) (all [][]uint32, cost int) {
	switch {
	case p.Nodes != nil:
		return t.labelRequirements(nil, p.Nodes, nodeLabel)
	case p.Domains != nil:
		d := p.Domains[0]
		kind := domain
		if d.Below {
			kind = belowDomain
		}
		return [][]uint32{{t.addKey(kind, d.Name).number}}, 1
	}
	all, cost = t.labelRequirements(nil, p.Pods.Pods, podLabel)
	if p.Pods.Accounts != nil {
		all = append(all, t.accountRequirement(p.Pods.Accounts))
		cost += len(p.Pods.Accounts)
	}
	if p.Pods.Namespace != "" {
		return append(all, []uint32{t.addKey(namespaceName, p.Pods.Namespace).number}), cost
	}
	if !p.Pods.Namespaces.Empty() {
		t.addKey(namespaceKnown, "")
	}
	all, more := t.labelRequirements(all, p.Pods.Namespaces, namespaceLabel)
	return all, cost + more
}

// accountRequirement returns the traits of having one of the accounts.
func (t *peerTable) accountRequirement(accounts []string) []uint32 {
	numbers := make([]uint32, len(accounts))
	for i, name := range accounts {
		numbers[i] = t.addKey(account, name).number
	}
	slices.Sort(numbers)
	return slices.Compact(numbers) // like addValues
}

// labelRequirements appends what s requires.
func (t *peerTable) labelRequirements(all [][]uint32, s labels.Selector, kind traitKind) (_ [][]uint32, cost int) {
	requirements, _ := s.Requirements()
	cost = 1
	for i := range requirements {
		r := &requirements[i]
		values := r.ValuesUnsorted()
		cost += 1 + len(values)
		key := t.addKey(kind, r.Key())
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			all = append(all, t.addValues(key, values))
		case selection.NotIn, selection.NotEquals:
			t.addValues(key, values)
		case selection.Exists:
			all = append(all, []uint32{key.number})
		case selection.GreaterThan, selection.LessThan:
			all = append(all, []uint32{key.number})
			t.compares = true
		}
	}
	return all, cost
}

// peer identifies a packet's peer.
type peer struct {
	pod   *Endpoint
	node  *Host
	names *Names
	scope scope
}

// traitsOf calls yield with the number of each trait that p has and t reads.
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

// traitsOfPod is traitsOf for a pod.
func (t *peerTable) traitsOfPod(e *Endpoint, yield func(uint32)) {
	t.traitOfName(namespaceName, e.Namespace, yield)
	t.traitOfName(account, e.Account, yield)
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

func (t *peerTable) traitsOfLabel(kind traitKind, k, v string, yield func(uint32)) {
	key := t.reads[kind][k]
	if key == nil {
		return
	}
	yield(key.number)
	if n, ok := key.values[v]; ok {
		yield(n)
	}
}

func (t *peerTable) traitOfName(kind traitKind, name string, yield func(uint32)) {
	if key := t.reads[kind][name]; key != nil {
		yield(key.number)
	}
}

// size estimates the number of traits of p.
func (t *peerTable) size(p peer) int {
	n := 0
	if t.pods && p.pod != nil {
		n += 2 + 2*p.pod.Labels.Len() + 2*p.pod.NamespaceLabels.Len()
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

// cost estimates how many comparisons evaluating p takes. It stops counting above limit.
func (t *peerTable) cost(p peer, limit int) int {
	cost := t.loose.cost + t.size(p)/4
	if cost > limit {
		return cost
	}
	t.traitsOf(p, func(n uint32) {
		if c := t.filed[n]; c != nil {
			cost += c.cost
		}
	})
	return cost
}

// evaluate returns the rules that select p.
func (t *peerTable) evaluate(p peer) set {
	f := &flow{peer: p.pod, host: p.node, names: p.names, scope: p.scope}
	var rules []uint32
	evaluate := func(c *candidates) {
		for _, n := range c.items {
			if item := &t.items[n]; item.peer.matches(f) {
				rules = append(rules, item.rules...)
			}
		}
	}
	evaluate(&t.loose)
	t.traitsOf(p, func(n uint32) {
		if c := t.filed[n]; c != nil {
			evaluate(c)
		}
	})
	return newSet(rules)
}
