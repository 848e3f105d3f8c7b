package policy

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// index finds the rules of a chain that match a packet, whatever the number of
// rules and of their peers, blocks and ports. Each part of a packet has a table
// that gives the set of rules it matches. A rule matches if its peers and its ports
// do, so that what matches is an intersection of sets.
type index struct {
	id    uint64 // no other index ever has it
	rules []Rule
	ends  [tiers]int // where the rules of each tier end

	anyPeer, anyPort set
	blocks           *blockTable
	peers            *peerTable
	tcp, udp, sctp   portTable
	named            map[portName][]uint32 // the rules that have a port of that name
	// namedTCP to namedSCTP are all rules with a named port for the protocol.
	namedTCP, namedUDP, namedSCTP set
	// hidden are the rules that deny or pass some numeric port, and namedHidden
	// those that do so with a named one.
	hidden, namedHidden set

	// mayDenyPods are the rules that deny or pass pods, and mayAllowPods those that
	// allow or pass pods.
	mayDenyPods, mayAllowPods set
}

// portName is a port's name and protocol.
type portName struct {
	name  string
	proto packet.Proto
}

var indexes atomic.Uint64 // how many were made

func newIndex(rules []Rule) *index {
	x := &index{
		id:     indexes.Add(1),
		rules:  rules,
		blocks: newBlockTable(rules),
		peers:  newPeerTable(rules),
		tcp:    newPortTable(rules, packet.TCP),
		udp:    newPortTable(rules, packet.UDP),
		sctp:   newPortTable(rules, packet.SCTP),
	}
	for t := range x.ends {
		x.ends[t], _ = slices.BinarySearchFunc(rules, Tier(t)+1, func(r Rule, t Tier) int { return cmp.Compare(r.Tier, t) })
	}
	x.anyPeer = where(rules, func(r *Rule) bool { return r.AnyPeer })
	x.anyPort = where(rules, func(r *Rule) bool { return r.AnyPort })
	x.hidden = where(rules, func(r *Rule) bool { return r.Action != Allow && !r.AnyPort && r.hasPortOf(nil) })
	x.mayDenyPods = where(rules, func(r *Rule) bool { return r.Action != Allow && r.selectsPods() })
	x.mayAllowPods = where(rules, func(r *Rule) bool { return r.Action != Deny && r.selectsPods() })
	x.addNames()
	return x
}

// where returns the rules that are so.
func where(rules []Rule, so func(*Rule) bool) set {
	var found []uint32
	for i := range rules {
		if so(&rules[i]) {
			found = append(found, uint32(i))
		}
	}
	return newSet(found)
}

func (x *index) addNames() {
	for i := range x.rules {
		if x.rules[i].AnyPort {
			continue
		}
		for _, p := range x.rules[i].Ports {
			for _, proto := range p.namedFor() {
				if x.named == nil {
					x.named = make(map[portName][]uint32)
				}
				name := portName{p.Name, proto}
				x.named[name] = append(x.named[name], uint32(i))
			}
		}
	}
	x.namedTCP = x.withNames(packet.TCP)
	x.namedUDP = x.withNames(packet.UDP)
	x.namedSCTP = x.withNames(packet.SCTP)
	x.namedHidden = x.worst(slices.Concat(slices.Collect(maps.Values(x.named))...))
}

// worst returns those of rules that count for a packet whose ports are hidden.
func (x *index) worst(rules []uint32) set {
	return newSet(slices.DeleteFunc(rules, func(n uint32) bool { return x.rules[n].Action == Allow }))
}

func (x *index) withNames(proto packet.Proto) set {
	var rules []uint32
	for name, all := range x.named {
		if name.proto == proto {
			rules = append(rules, all...)
		}
	}
	return newSet(rules)
}

// namedFor returns the rules with a named port for proto.
func (x *index) namedFor(proto packet.Proto) set {
	switch proto {
	case packet.TCP:
		return x.namedTCP
	case packet.UDP:
		return x.namedUDP
	case packet.SCTP:
		return x.namedSCTP
	}
	if proto.Hidden() {
		return x.namedHidden
	}
	return nil
}

// namedFor returns the protocols for which the item matches a port by its name.
func (p *Port) namedFor() []packet.Proto {
	switch {
	case p.Name == "":
		return nil
	case p.Proto == packet.Unknown:
		return []packet.Proto{packet.TCP, packet.UDP, packet.SCTP}
	}
	return []packet.Proto{p.Proto}
}

// match fills in m, which is empty, with what is known of f. It reports false if
// something has to be evaluated first.
func (x *index) match(f *flow, m *match) bool {
	m.anyPeer, m.anyPort, m.blocks = x.anyPeer, x.anyPort, x.blocks.at(f.peerAddr)
	switch f.proto {
	case packet.TCP:
		m.ports = x.tcp.match(f.dstPort)
	case packet.UDP:
		m.ports = x.udp.match(f.dstPort)
	case packet.SCTP:
		m.ports = x.sctp.match(f.dstPort)
	default:
		if f.proto.Hidden() {
			m.ports = x.hidden
		}
	}
	var peersKnown, namesKnown bool
	m.peers, peersKnown = x.matchPeer(f)
	m.named, namesKnown = x.matchNamed(f)
	return peersKnown && namesKnown
}

// matchPeer returns the rules that select who the peer is.
func (x *index) matchPeer(f *flow) (set, bool) {
	t := x.peers
	if t == nil {
		return nil, true
	}
	var p peer
	k := key{index: x.id}
	if t.pods {
		p.pod = f.peer
	}
	if t.nodes {
		p.node, k.node = f.host, f.host
	}
	if t.domains {
		p.names, p.scope = f.names, f.scope
		k.names, k.scope = f.names, f.scope
	}
	if p == (peer{}) {
		return nil, true
	}
	return f.recall(x, k, p)
}

// matchNamed returns the rules with a named port that the destination declares for
// the packet's.
func (x *index) matchNamed(f *flow) (set, bool) {
	if x.named == nil || f.dst == nil || len(f.dst.portsFor(namedKey(f.proto, f.dstPort))) == 0 {
		return nil, true
	}
	return f.recall(x, key{index: x.id, port: namedKey(f.proto, f.dstPort)}, peer{pod: f.dst})
}

// portsFor returns what e declares that a packet with the namedKey may be for.
func (e *Endpoint) portsFor(key uint64) []NamedPort {
	if key == hiddenKey {
		return e.Ports
	}
	proto, port := packet.Proto(key>>16), uint16(key)
	from, found := slices.BinarySearchFunc(e.Ports, NamedPort{Proto: proto, Port: port}, NamedPort.compare)
	if !found {
		return nil
	}
	to := from
	for to < len(e.Ports) && e.Ports[to].Proto == proto && e.Ports[to].Port == port {
		to++
	}
	return e.Ports[from:to]
}

func (p NamedPort) compare(o NamedPort) int {
	return cmp.Or(cmp.Compare(p.Proto, o.Proto), cmp.Compare(p.Port, o.Port))
}

// SortPorts returns ports in the order that Endpoint.Ports needs.
func SortPorts(ports []NamedPort) []NamedPort {
	if slices.IsSortedFunc(ports, NamedPort.compare) {
		return ports
	}
	return slices.SortedStableFunc(slices.Values(ports), NamedPort.compare)
}

// cost returns about how many comparisons evaluate makes, or a number above limit.
func (x *index) cost(p peer, namedKey uint64, limit int) int {
	if namedKey == 0 {
		return x.peers.cost(p, limit)
	}
	names := p.pod.portsFor(namedKey)
	cost := len(names)
	for i := 0; i < len(names) && cost <= limit; i++ {
		cost += len(x.named[portName{names[i].Name, names[i].Proto}])
	}
	return cost
}

// evaluate returns the rules that select p or, with a namedKey, those with a named
// port that p declares for that port.
func (x *index) evaluate(p peer, namedKey uint64) set {
	if namedKey == 0 {
		return x.peers.evaluate(p)
	}
	var rules []uint32
	for _, n := range p.pod.portsFor(namedKey) {
		rules = append(rules, x.named[portName{n.Name, n.Proto}]...)
	}
	if namedKey == hiddenKey {
		return x.worst(rules)
	}
	return newSet(rules)
}

// decide is Chain.decide.
func (x *index) decide(f *flow, m *match) *Rule {
	rule, _ := x.decideBefore(len(x.rules), f, m)
	return rule
}

// decideBefore evaluates the rules before end, and reports whether the later ones need
// not be evaluated.
func (x *index) decideBefore(end int, f *flow, m *match) (rule *Rule, settled bool) {
	var p progress
	for i := m.next(x.ends[DefaultTier], end); i < end; i = m.next(x.behind(i, &p), end) {
		if r := &x.rules[i]; p.settles(r, f) {
			return r, true
		}
	}
	return p.allowed, false
}

// behind returns the first rule after rule i that is still to be evaluated.
func (x *index) behind(i int, p *progress) int {
	if t := x.rules[i].Tier; t == p.passed {
		return x.ends[t]
	}
	return i + 1
}

// hasNetworkPolicy reports whether NetworkPolicy isolates the pod.
func (x *index) hasNetworkPolicy() bool { return x.ends[AdminTier] < x.ends[NetworkPolicyTier] }

// decideExempt decides about a flow that NetworkPolicy always allows: where its
// tier begins, exempt is true and nothing else is evaluated. Administrators' rules
// before it decide, and those after it if no NetworkPolicy isolates the pod.
func (x *index) decideExempt(f *flow, m *match) (rule *Rule, exempt bool) {
	if !x.hasNetworkPolicy() {
		return x.decide(f, m), false
	}
	rule, settled := x.decideBefore(x.ends[AdminTier], f, m)
	if !settled {
		return nil, true
	}
	return rule, false
}

// dependsOnPeer reports whether f, whose peer is an unknown pod, may be denied
// because of its labels: an administrator's rule that denies or passes pods comes
// before any rule that decides for every peer. NetworkPolicy denies unknown peers,
// so nothing after it matters.
func (x *index) dependsOnPeer(f *flow, m *match) bool {
	end := len(x.rules)
	if x.hasNetworkPolicy() {
		end = x.ends[AdminTier]
	}
	return x.peerMayMatch(x.mayDenyPods, end, f, m)
}

// mayAllowPeer reports whether f, which is denied as its peer is an unknown pod, may be
// allowed because of its labels.
func (x *index) mayAllowPeer(f *flow, m *match) bool {
	return x.peerMayMatch(x.mayAllowPods, len(x.rules), f, m)
}

// mayDecideOtherwise reports whether rule, which decides about f, may not do so if the peer
// turns out to be a pod: because of its labels, of the named ports that it declares, or of
// learned names, which do not match pods.
func (x *index) mayDecideOtherwise(rule *Rule, f *flow, m *match) bool {
	if !rule.denies() {
		return x.dependsOnPeer(f, m) || x.dependsOnScope(rule, f)
	}
	return x.mayAllowPeer(f, m) || f.dst == nil && len(x.namedFor(f.proto)) > 0
}

// dependsOnScope reports whether rule, which allows f, may not do so if only names of the
// cluster match the peer.
func (x *index) dependsOnScope(rule *Rule, f *flow) bool {
	if f.names == nil || f.scope != allNames {
		return false
	}
	of, matched := *f, match{}
	of.scope = clusterNames
	return !x.match(&of, &matched) || x.decide(&of, &matched).denies() != rule.denies()
}

// peerMayMatch reports whether one of rules, which select pods, may match f, whose peer
// is an unknown pod, before a rule decides for every peer.
func (x *index) peerMayMatch(rules set, end int, f *flow, m *match) bool {
	may := match{anyPeer: rules, anyPort: m.anyPort, ports: m.ports, named: m.named}
	if f.dst == nil {
		may.named = x.namedFor(f.proto) // its named ports are not known either
	}
	var p progress
	for i := x.ends[DefaultTier]; ; {
		matched := m.next(i, end)
		if may.next(i, end) < matched {
			return true
		}
		if matched == end || p.settles(&x.rules[matched], f) {
			return false
		}
		i = x.behind(matched, &p)
	}
}
