package reachability

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// traits are all properties of a peer that the rules of a cluster can distinguish: one for
// each pod selector and each prefix. All chains treat peers with equal traits alike.
type traits struct {
	c         *Cluster
	count     int
	selectors map[requirement][]selectorTrait
	prefixes  bart.Table[int]
	index     map[string]int // number of a selector or prefix
	// numbers are the port numbers that endpoints declare under a name.
	numbers map[policy.NamedPort][]uint16
}

// selectorTrait is a selector with its number.
type selectorTrait struct {
	*policy.PodSelector
	number int
}

// requirement is what a pod must have to be selected: to be in a namespace, if there is one, and to
// have a label, if there is one. Without a namespace, ofNamespace says that the label is that of the
// namespace.
type requirement struct {
	namespace, key, value string
	ofNamespace           bool
}

// requirementOf returns a requirement of a selector that few pods satisfy.
func requirementOf(s *policy.PodSelector) requirement {
	if key, value, ok := requiredLabel(s.Pods); ok {
		return requirement{namespace: s.Namespace, key: key, value: value}
	}
	if s.Namespace == "" {
		if key, value, ok := requiredLabel(s.Namespaces); ok {
			return requirement{key: key, value: value, ofNamespace: true}
		}
	}
	return requirement{namespace: s.Namespace}
}

// requiredLabel returns a label that all have that a selector selects.
func requiredLabel(s labels.Selector) (key, value string, ok bool) {
	requirements, _ := s.Requirements()
	for i := range requirements {
		if key, value, ok := ExactLabel(&requirements[i]); ok {
			return key, value, true
		}
	}
	return "", "", false
}

// ExactLabel returns the label that a requirement demands, if it is one with one value.
func ExactLabel(r *labels.Requirement) (key, value string, ok bool) {
	switch r.Operator() {
	case selection.In, selection.Equals, selection.DoubleEquals:
		if values := r.ValuesUnsorted(); len(values) == 1 {
			return r.Key(), values[0], true
		}
	}
	return "", "", false
}

// requirementsMet yields every requirement that a pod satisfies.
func requirementsMet(e *policy.Endpoint) func(yield func(requirement) bool) {
	return func(yield func(requirement) bool) {
		if !yield(requirement{}) || !yield(requirement{namespace: e.Namespace}) {
			return
		}
		for key, value := range e.Labels.All() {
			if !yield(requirement{key: key, value: value}) || !yield(requirement{namespace: e.Namespace, key: key, value: value}) {
				return
			}
		}
		for key, value := range e.NamespaceLabels.All() {
			if !yield(requirement{key: key, value: value, ofNamespace: true}) {
				return
			}
		}
	}
}

func newTraits(c *Cluster) *traits {
	t := &traits{c: c, selectors: map[requirement][]selectorTrait{}, index: map[string]int{}, numbers: map[policy.NamedPort][]uint16{}}
	for _, e := range c.endpoints {
		for _, n := range e.ports {
			name := policy.NamedPort{Name: n.Name, Proto: n.Proto}
			if !slices.Contains(t.numbers[name], n.Port) {
				t.numbers[name] = append(t.numbers[name], n.Port)
			}
		}
	}
	for r := range c.rules() {
		for i := range r.Peers {
			if s := r.Peers[i].Pods; s != nil {
				if n := number(t.index, SelectorKey(s)); n == t.count {
					t.selectors[requirementOf(s)] = append(t.selectors[requirementOf(s)], selectorTrait{s, n})
					t.count++
				}
			}
			for _, p := range prefixesOf(&r.Peers[i]) {
				if n := number(t.index, p.String()); n == t.count {
					t.prefixes.Insert(p, n)
					t.count++
				}
			}
		}
	}
	return t
}

// SelectorKey is equal for selectors that select the same pods.
func SelectorKey(s *policy.PodSelector) string {
	pods := labelsKey(s.Pods)
	if s.Accounts != nil {
		pods += fmt.Sprintf("|%q", s.Accounts)
	}
	if s.Namespace != "" {
		return s.Namespace + "|" + pods
	}
	return "|" + labelsKey(s.Namespaces) + "|" + pods
}

// labelsKey is the text of a selector. That of one that selects nothing would be empty, like that of
// one that selects everything.
func labelsKey(s labels.Selector) string {
	if _, selectable := s.Requirements(); !selectable {
		return "!"
	}
	return s.String()
}

// prefixesOf returns the masked prefixes of a peer's blocks and of their exceptions.
func prefixesOf(p *policy.Peer) []netip.Prefix {
	var all []netip.Prefix
	for _, b := range p.Blocks {
		all = append(append(all, b.Prefix), b.Except...)
	}
	for i := range all {
		all[i] = all[i].Masked()
	}
	return all
}

// ofChain returns the traits that the rules of a chain distinguish, and whether any rule
// has a named port.
func (t *traits) ofChain(chain *policy.Chain) (found []int, names bool) {
	for i := range chain.Rules {
		r := &chain.Rules[i]
		for j := range r.Peers {
			if s := r.Peers[j].Pods; s != nil {
				found = append(found, t.index[SelectorKey(s)])
			}
			for _, p := range prefixesOf(&r.Peers[j]) {
				found = append(found, t.index[p.String()])
			}
		}
		names = names || slices.ContainsFunc(r.Ports, func(p policy.Port) bool { return p.Name != "" })
	}
	slices.Sort(found)
	return slices.Compact(found), names
}

// spans divides all ports into ranges that no rule of the chains distinguishes.
func (t *traits) spans(chains ...*policy.Chain) []PortRange {
	cuts := map[packet.Proto][]int{}
	for _, p := range protocols {
		cuts[p] = []int{1}
	}
	for _, chain := range chains {
		for i := range chain.Rules {
			for _, p := range chain.Rules[i].Ports {
				t.cut(cuts, &p)
			}
		}
	}
	var spans []PortRange
	for _, p := range protocols {
		if p.HasPorts() {
			spans = append(spans, portRangesBetween(p, cuts[p])...)
		}
	}
	return append(spans, wholeRange(packet.ICMP))
}

// cut adds the boundaries of a rule's port: each is the first port of a range.
func (t *traits) cut(cuts map[packet.Proto][]int, p *policy.Port) {
	if p.Name == "" {
		if p.First <= p.Last {
			cuts[p.Proto] = append(cuts[p.Proto], max(1, int(p.First)), int(p.Last)+1)
		}
		return
	}
	for _, proto := range protocols {
		if p.Proto != proto && p.Proto != packet.Unknown {
			continue
		}
		for _, n := range t.numbers[policy.NamedPort{Name: p.Name, Proto: proto}] {
			cuts[proto] = append(cuts[proto], int(n), int(n)+1)
		}
	}
}

// placer assigns endpoints to their places.
type placer struct {
	r        *Reach
	subjects [2]map[subjectKey]int
	peers    map[string]int
	ports    map[string]int   // index of a list of named ports
	selected map[string][]int // numbers of selectors
	classes  map[place]int
	ranges   *bart.Lite
}

type subjectKey struct {
	chain    *policy.Chain
	ports    int
	disputed string
}

func newPlacer(r *Reach) *placer {
	return &placer{
		r: r, subjects: [2]map[subjectKey]int{{}, {}}, peers: map[string]int{}, ports: map[string]int{},
		selected: map[string][]int{}, classes: map[place]int{}, ranges: clusterRanges(Translated{}, []*Cluster{r.c}),
	}
}

func (b *placer) place(s *Endpoint) place {
	p := place{subject: [2]int{-1, -1}, peer: [2]int{-1, -1}}
	e := b.r.c.podOf(s)
	if b.r.c.disputes.has(s.Addrs()...) {
		p.disputed, p.ownAddr = s.Name, true
	}
	ports := number(b.ports, fmt.Sprint(s.ports))
	for family, addr := range []netip.Addr{s.v4, s.v6} {
		if !addr.IsValid() {
			continue
		}
		p.peer[family] = b.peer(addr, s.placeholder, e, ports, p.disputed != "")
		p.ownAddr = p.ownAddr || e == nil && (b.ranges.Lookup(addr) || b.r.c.snapshot.Endpoint(addr) != nil)
		if e != nil {
			p.subject[policy.Ingress] = b.subject(policy.Ingress, subjectKey{e.Ingress, ports, p.disputed}, family, addr, s.placeholder)
			p.subject[policy.Egress] = b.subject(policy.Egress, subjectKey{e.Egress, 0, p.disputed}, family, addr, s.placeholder)
		}
	}
	p.class, p.pod = number(b.classes, p), e
	return p
}

// AddressClasses returns for each of some nodes a key that is equal if no rule tells their
// addresses apart.
func (c *Cluster) AddressClasses(nodes []Endpoint) []string {
	blocks := blocksOf([]*Cluster{c})
	byLabels := false
	for r := range c.rules() {
		byLabels = byLabels || slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Nodes != nil })
	}
	keys := make([]string, len(nodes))
	for i := range nodes {
		keys[i] = smallest(nodes[i].first(), blocks).String()
		if byLabels {
			keys[i] += c.labels[nodes[i].Node].String()
		}
	}
	return keys
}

// number returns the number of a key. A new key gets the next one.
func number[K comparable](known map[K]int, key K) int {
	n, ok := known[key]
	if !ok {
		n = len(known)
		known[key] = n
	}
	return n
}

func (b *placer) subject(d policy.Direction, key subjectKey, family int, addr, placeholder netip.Addr) int {
	chain := key.chain
	if chain == nil {
		return -1
	}
	index := number(b.subjects[d], key)
	if index == len(b.r.subjects[d]) {
		s := &subject{direction: d, chain: chain, spans: b.r.traits.spans(chain), sets: map[string]int32{}}
		s.traits, s.names = b.r.traits.ofChain(chain)
		s.nodes = slices.ContainsFunc(chain.Rules, func(r policy.Rule) bool {
			return slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Nodes != nil })
		})
		b.r.subjects[d] = append(b.r.subjects[d], s)
	}
	if s := b.r.subjects[d][index]; !s.addrs[family].IsValid() {
		s.addrs[family], s.known[family] = addr, placeholder
	}
	return index
}

// peer returns the index of the peer for an address.
func (b *placer) peer(addr, placeholder netip.Addr, e *policy.Endpoint, ports int, disputed bool) int {
	p := peer{addr: addr, known: placeholder, ports: ports}
	if !disputed {
		p.kind = b.kind(addr, e)
	}
	key := addr.String()
	if p.kind != noKind {
		if p.kind == podPeer {
			p.traits = slices.Clone(b.selectors(e))
		}
		for _, n := range b.r.traits.prefixes.Supernets(netip.PrefixFrom(addr, addr.BitLen())) {
			p.traits = append(p.traits, n)
		}
		slices.Sort(p.traits)
	}
	if p.kind == podPeer {
		key = fmt.Sprint(ports, addr.Is4(), p.traits)
	}
	index := number(b.peers, key)
	if index == len(b.r.peers) {
		b.r.peers = append(b.r.peers, &p)
	}
	return index
}

// kind returns what has an address: pod e, unless that is nil.
func (b *placer) kind(addr netip.Addr, e *policy.Endpoint) peerKind {
	node := b.r.c.nodes[addr] != ""
	switch {
	case e != nil && !node:
		return podPeer
	case e != nil, b.ranges.Lookup(addr), b.r.c.snapshot.Endpoint(addr) != nil:
		return noKind
	case node:
		return nodePeer
	}
	return externalPeer
}

// selectors returns the numbers of the selectors that match a pod.
func (b *placer) selectors(e *policy.Endpoint) []int {
	key := e.Namespace + "|" + e.Account + "|" + e.Labels.String()
	has, known := b.selected[key]
	if !known {
		for met := range requirementsMet(e) {
			for _, s := range b.r.traits.selectors[met] {
				if s.Selects(e) {
					has = append(has, s.number)
				}
			}
		}
		b.selected[key] = has
	}
	return has
}
