package reachability

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// traits are all properties of a peer that the rules of a cluster can distinguish: one for
// each pod selector and each prefix. All chains treat peers with equal traits alike.
type traits struct {
	c         *Cluster
	selectors []*policy.PodSelector
	prefixes  []netip.Prefix // numbered after the selectors
	index     map[string]int // number of a selector or prefix
	// numbers are the port numbers that endpoints declare under a name.
	numbers map[policy.NamedPort][]uint16
}

func newTraits(c *Cluster) *traits {
	t := &traits{c: c, index: map[string]int{}, numbers: map[policy.NamedPort][]uint16{}}
	for _, e := range c.endpoints {
		for _, n := range e.ports {
			name := policy.NamedPort{Name: n.Name, Proto: n.Proto}
			if !slices.Contains(t.numbers[name], n.Port) {
				t.numbers[name] = append(t.numbers[name], n.Port)
			}
		}
	}
	selectors, prefixes := map[string]*policy.PodSelector{}, map[string]netip.Prefix{}
	for r := range c.rules() {
		for i := range r.Peers {
			if s := r.Peers[i].Pods; s != nil {
				selectors[selectorKey(s)] = s
			}
			for _, p := range prefixesOf(&r.Peers[i]) {
				prefixes[p.String()] = p
			}
		}
	}
	for key, s := range selectors {
		t.index[key] = len(t.selectors)
		t.selectors = append(t.selectors, s)
	}
	for key, p := range prefixes {
		t.index[key] = len(t.selectors) + len(t.prefixes)
		t.prefixes = append(t.prefixes, p)
	}
	return t
}

func selectorKey(s *policy.PodSelector) string {
	pods := s.Pods.String() + "|" + strings.Join(s.Accounts, ",")
	if s.Namespace != "" {
		return s.Namespace + "|" + pods
	}
	return "|" + s.Namespaces.String() + "|" + pods
}

// prefixesOf returns the prefixes of a peer's blocks and of their exceptions.
func prefixesOf(p *policy.Peer) []netip.Prefix {
	var all []netip.Prefix
	for _, b := range p.Blocks {
		all = append(append(all, b.Prefix), b.Except...)
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
				found = append(found, t.index[selectorKey(s)])
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

// bits is a set of small integers.
type bits []uint64

func newBits(n int) bits { return make(bits, (n+63)/64) }

func (b bits) has(i int) bool { return b[i/64]&(1<<(i%64)) != 0 }

func (b bits) add(i int) { b[i/64] |= 1 << (i % 64) }

func (b bits) key() string {
	key := make([]byte, 0, 8*len(b))
	for _, word := range b {
		key = binary.LittleEndian.AppendUint64(key, word)
	}
	return string(key)
}

// placer assigns endpoints to their places.
type placer struct {
	r        *Reach
	subjects [2]map[subjectKey]int
	peers    map[string]int
	ports    map[string]int // index of a list of named ports
	selected map[string]bits
	classes  map[place]int
	ranges   []netip.Prefix
}

type subjectKey struct {
	chain *policy.Chain
	ports int
}

func newPlacer(r *Reach) *placer {
	return &placer{
		r: r, subjects: [2]map[subjectKey]int{{}, {}}, peers: map[string]int{}, ports: map[string]int{},
		selected: map[string]bits{}, classes: map[place]int{}, ranges: clusterRanges([]*Cluster{r.c}),
	}
}

func (b *placer) place(s *Endpoint) place {
	p := place{subject: [2]int{-1, -1}, peer: [2]int{-1, -1}}
	e := b.r.c.snapshot.Endpoint(s.first())
	if s.Kind != Pod {
		e = nil
	}
	ports := number(b.ports, fmt.Sprint(s.ports))
	for family, addr := range []netip.Addr{s.v4, s.v6} {
		if !addr.IsValid() {
			continue
		}
		p.peer[family] = b.peer(addr, e, ports)
		p.ownAddr = p.ownAddr || e == nil && (inAny(b.ranges, addr) || b.r.c.snapshot.Endpoint(addr) != nil)
		if e != nil {
			p.subject[policy.Ingress] = b.subject(policy.Ingress, e.Ingress, ports, family, addr)
			p.subject[policy.Egress] = b.subject(policy.Egress, e.Egress, 0, family, addr)
		}
	}
	p.class, p.pod = number(b.classes, p), e
	return p
}

// AddressClasses returns for each of some nodes a key that is equal if no rule tells their
// addresses apart.
func (c *Cluster) AddressClasses(nodes []Endpoint) []string {
	blocks, _ := prefixes([]*Cluster{c})
	byLabels := false
	for r := range c.rules() {
		byLabels = byLabels || slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Nodes != nil })
	}
	keys := make([]string, len(nodes))
	for i := range nodes {
		keys[i] = membership(nodes[i].first(), blocks)
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

func (b *placer) subject(d policy.Direction, chain *policy.Chain, ports, family int, addr netip.Addr) int {
	if chain == nil {
		return -1
	}
	index := number(b.subjects[d], subjectKey{chain, ports})
	if index == len(b.r.subjects[d]) {
		s := &subject{direction: d, chain: chain, spans: b.r.traits.spans(chain), known: map[string]int32{}}
		s.traits, s.names = b.r.traits.ofChain(chain)
		b.r.subjects[d] = append(b.r.subjects[d], s)
	}
	if s := b.r.subjects[d][index]; !s.addrs[family].IsValid() {
		s.addrs[family] = addr
	}
	return index
}

// peer returns the index of the peer for an address. An address that is not only a pod's
// has a peer of its own.
func (b *placer) peer(addr netip.Addr, e *policy.Endpoint, ports int) int {
	t := b.r.traits
	has := newBits(len(t.selectors) + len(t.prefixes))
	key := addr.String()
	pod := e != nil && b.r.c.nodes[addr] == ""
	if pod {
		copy(has, b.selectors(e))
		for i, p := range t.prefixes {
			if p.Contains(addr) {
				has.add(len(t.selectors) + i)
			}
		}
		key = fmt.Sprint(ports, addr.Is4()) + has.key()
	}
	index := number(b.peers, key)
	if index == len(b.r.peers) {
		b.r.peers = append(b.r.peers, &peer{addr: addr, pod: pod, traits: has, ports: ports})
	}
	return index
}

// selectors returns the selectors that match a pod.
func (b *placer) selectors(e *policy.Endpoint) bits {
	key := e.Namespace + "|" + e.Account + "|" + e.Labels.String()
	has, known := b.selected[key]
	if !known {
		has = newBits(len(b.r.traits.selectors))
		for i, s := range b.r.traits.selectors {
			if s.Selects(e) {
				has.add(i)
			}
		}
		b.selected[key] = has
	}
	return has
}
