package policy

import (
	"iter"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// peerTable finds the rules whose peers select who the peer is: a pod, a node or
// the holder of a domain name. Each selector is found by one thing that it needs
// its peer to have, so that only few are evaluated for any peer.
type peerTable struct {
	items []peerItem
	loose candidates       // items that need nothing a peer has
	reads map[trait]uint32 // all that items read of a peer, numbered
	by    []*candidates    // for each number the items that need it, nil for none

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

// trait is something that a peer may have.
type trait struct {
	of         traitKind
	key, value string
}

type traitKind uint8

const (
	namespaceName traitKind = iota
	podLabel                // with a key and a value
	podLabelKey
	namespaceLabel
	namespaceLabelKey
	namespaceKnown
	nodeLabel
	nodeLabelKey
	domain
	belowDomain
)

// newPeerTable returns nil if no rule selects pods, nodes or domains.
func newPeerTable(rules []Rule) *peerTable {
	t := &peerTable{reads: make(map[trait]uint32)}
	known := make(map[trait]uint32) // selectors as text
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

func (t *peerTable) addPeer(known map[trait]uint32, p *Peer, rule uint32) {
	switch {
	case p.selectsNothing():
	case p.Pods != nil:
		s := p.Pods
		name := trait{of: podLabel, key: s.Namespace, value: s.Pods.String()}
		if s.Namespace == "" {
			name.of, name.key = namespaceLabel, s.Namespaces.String()
		}
		t.pods = true
		t.add(known, name, Peer{Pods: s}, rule)
	case p.Nodes != nil:
		t.nodes = true
		t.add(known, trait{of: nodeLabel, value: p.Nodes.String()}, Peer{Nodes: p.Nodes}, rule)
	default:
		for i, d := range p.Domains {
			name := trait{of: domain, value: d.Name}
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
func (t *peerTable) add(known map[trait]uint32, name trait, p Peer, rule uint32) {
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
	shared := make([]int, len(t.reads))
	for _, all := range needs {
		for _, oneOf := range all {
			for _, need := range oneOf {
				shared[need]++
			}
		}
	}
	t.by = make([]*candidates, len(t.reads))
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

// number returns the number of h, which items read.
func (t *peerTable) number(h trait) uint32 {
	n, ok := t.reads[h]
	if !ok {
		n = uint32(len(t.reads))
		t.reads[h] = n
	}
	return n
}

// needs returns what p needs a peer to have: of each list one. The cost is that of
// evaluating p, about as many comparisons. All that p reads of a peer gets a number.
func (t *peerTable) needs(p *Peer) (all [][]uint32, cost int) {
	switch {
	case p.Nodes != nil:
		return t.labelNeeds(nil, p.Nodes, nodeLabel, nodeLabelKey)
	case p.Domains != nil:
		d := p.Domains[0]
		of := domain
		if d.Below {
			of = belowDomain
		}
		return [][]uint32{{t.number(trait{of: of, value: d.Name})}}, 1
	}
	all, cost = t.labelNeeds(nil, p.Pods.Pods, podLabel, podLabelKey)
	if p.Pods.Namespace != "" {
		return append(all, []uint32{t.number(trait{of: namespaceName, value: p.Pods.Namespace})}), cost
	}
	if !p.Pods.Namespaces.Empty() {
		t.number(trait{of: namespaceKnown})
	}
	all, more := t.labelNeeds(all, p.Pods.Namespaces, namespaceLabel, namespaceLabelKey)
	return all, cost + more
}

// labelNeeds appends what s needs.
func (t *peerTable) labelNeeds(all [][]uint32, s labels.Selector, pair, key traitKind) (_ [][]uint32, cost int) {
	requirements, _ := s.Requirements()
	cost = 1
	for i := range requirements {
		r := &requirements[i]
		values := r.ValuesUnsorted()
		cost += 1 + len(values)
		hasKey := []uint32{t.number(trait{of: key, key: r.Key()})}
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			all = append(all, t.pairs(pair, r.Key(), values))
		case selection.NotIn, selection.NotEquals:
			t.pairs(pair, r.Key(), values)
		case selection.Exists:
			all = append(all, hasKey)
		case selection.GreaterThan, selection.LessThan:
			all = append(all, hasKey)
			t.compares = true
		}
	}
	return all, cost
}

// pairs returns the numbers of labels with one key.
func (t *peerTable) pairs(of traitKind, key string, values []string) []uint32 {
	numbers := make([]uint32, len(values))
	for i, v := range values {
		numbers[i] = t.number(trait{of, key, v})
	}
	return numbers
}

// peer is who a packet's peer is.
type peer struct {
	pod   *Endpoint
	node  *Host
	names *Names
}

// traits calls yield with everything that p has and t asks for.
func (t *peerTable) traits(p peer, yield func(trait)) {
	if t.pods && p.pod != nil {
		yield(trait{of: namespaceName, value: p.pod.Namespace})
		labelTraits(p.pod.Labels.All(), podLabel, podLabelKey, yield)
		labelTraits(p.pod.NamespaceLabels.All(), namespaceLabel, namespaceLabelKey, yield)
	}
	if t.nodes && p.node != nil {
		for _, node := range *p.node {
			labelTraits(maps.All(node), nodeLabel, nodeLabelKey, yield)
		}
	}
	if t.domains && p.names != nil {
		for _, name := range *p.names {
			yield(trait{of: domain, value: name})
			for above := name; ; {
				_, below, ok := strings.Cut(above, ".")
				if !ok {
					break
				}
				yield(trait{of: belowDomain, value: below})
				above = below
			}
		}
	}
}

func labelTraits(l iter.Seq2[string, string], pair, key traitKind, yield func(trait)) {
	for k, v := range l {
		yield(trait{pair, k, v})
		yield(trait{of: key, key: k})
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
	t.traits(p, func(h trait) {
		if c := t.candidates(h); c != nil {
			cost += c.cost
		}
	})
	return cost
}

// candidates returns the items that need h, nil if there are none.
func (t *peerTable) candidates(h trait) *candidates {
	if n, ok := t.reads[h]; ok {
		return t.by[n]
	}
	return nil
}

// evaluate returns the rules that select p.
func (t *peerTable) evaluate(p peer) set {
	f := &flow{peer: p.pod, host: p.node, names: p.names}
	var rules []uint32
	ask := func(c *candidates) {
		for _, n := range c.items {
			if item := &t.items[n]; item.peer.matches(f) {
				rules = append(rules, item.rules...)
			}
		}
	}
	ask(&t.loose)
	t.traits(p, func(h trait) {
		if c := t.candidates(h); c != nil {
			ask(c)
		}
	})
	return newSet(rules)
}
