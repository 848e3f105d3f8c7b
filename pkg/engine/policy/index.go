package policy

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// index finds the rules of a chain that match a packet without evaluating each rule. Each part of a
// packet is looked up in a table that returns a set of rules. A rule matches if its peers and its
// ports do, so the matching rules are the intersection of these sets.
type index struct {
	id    uint64 // unique in this process
	rules []Rule
	ends  [tiers]int // the index after the last rule of each tier

	anyPeer, anyPort set
	blocks           *blockTable
	peers            *peerTable
	tcp, udp, sctp   portTable
	named            map[portName][]uint32 // the rules that have a port of that name
	// namedTCP to namedSCTP are the rules with any named port for the protocol.
	namedTCP, namedUDP, namedSCTP set
	// hidden are the rules that deny or pass some numeric port, namedHidden those that deny or pass
	// a named one.
	hidden, namedHidden set

	// mayDenyPods are the rules that deny or pass pods, mayAllowPods those that allow or pass pods.
	mayDenyPods, mayAllowPods set

	cache cache
}

// portName is a port's name and protocol.
type portName struct {
	name  string
	proto packet.Proto
}

var indexes atomic.Uint64 // the id of the newest index

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
	x.anyPeer = rulesWhere(rules, func(r *Rule) bool { return r.AnyPeer })
	x.anyPort = rulesWhere(rules, func(r *Rule) bool { return r.AnyPort })
	x.hidden = rulesWhere(rules, func(r *Rule) bool { return r.Action != Allow && !r.AnyPort && r.hasPortOn(nil) })
	x.mayDenyPods = rulesWhere(rules, func(r *Rule) bool { return r.Action != Allow && r.selectsPods() })
	x.mayAllowPods = rulesWhere(rules, func(r *Rule) bool { return r.Action != Deny && r.selectsPods() })
	x.addNames()
	return x
}

// rulesWhere returns the rules that satisfy the predicate.
func rulesWhere(rules []Rule, predicate func(*Rule) bool) set {
	var found []uint32
	for i := range rules {
		if predicate(&rules[i]) {
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
	x.namedHidden = x.withoutAllow(slices.Concat(slices.Collect(maps.Values(x.named))...))
}

// withoutAllow returns the rules that match a packet with hidden ports: a rule that allows does not
// (see progress).
func (x *index) withoutAllow(rules []uint32) set {
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

// match fills in the empty m with the sets of rules that f matches. It returns false if an
// evaluation is pending.
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

// matchPeer returns the rules that select the peer as a pod, a node or a domain name.
func (x *index) matchPeer(f *flow) (set, bool) {
	t := x.peers
	if t == nil {
		return nil, true
	}
	var p peer
	if t.pods {
		p.pod = f.peer
	}
	if t.nodes {
		p.node = f.host
	}
	if t.domains {
		p.names, p.scope = f.names, f.scope
	}
	if p == (peer{}) {
		return nil, true
	}
	return f.recall(x, p, 0)
}

// matchNamed returns the rules with a named port that the destination declares for the packet's
// port.
func (x *index) matchNamed(f *flow) (set, bool) {
	if x.named == nil || f.dst == nil || len(f.dst.portsFor(namedKey(f.proto, f.dstPort))) == 0 {
		return nil, true
	}
	return f.recall(x, peer{pod: f.dst}, namedKey(f.proto, f.dstPort))
}

// hiddenKey is the namedKey of packets with hidden ports.
const hiddenKey = 2 << 32

// namedKey encodes the protocol and port by which a packet is looked up among a pod's named ports.
// It is 0 for protocols without ports.
func namedKey(proto packet.Proto, port uint16) uint64 {
	switch {
	case proto.HasPorts():
		return 1<<32 | uint64(proto)<<16 | uint64(port)
	case proto.Hidden():
		return hiddenKey
	}
	return 0
}

// portsFor returns the declared ports of e that a packet with this namedKey may be for.
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

// cost estimates how many comparisons evaluate makes. It stops counting above limit.
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

// evaluate returns the rules that select p or, with a namedKey, the rules with a named port that p
// declares for it.
func (x *index) evaluate(p peer, namedKey uint64) set {
	if namedKey == 0 {
		return x.peers.evaluate(p)
	}
	var rules []uint32
	for _, n := range p.pod.portsFor(namedKey) {
		rules = append(rules, x.named[portName{n.Name, n.Proto}]...)
	}
	if namedKey == hiddenKey {
		return x.withoutAllow(rules)
	}
	return newSet(rules)
}

// decide returns the rule that Chain.scan returns.
func (x *index) decide(f *flow, m *match) *Rule {
	rule, _ := x.decideBefore(len(x.rules), f, m)
	return rule
}

// decideBefore evaluates the rules before end and reports whether their decision is final.
func (x *index) decideBefore(end int, f *flow, m *match) (rule *Rule, decided bool) {
	var p progress
	for i := m.next(x.ends[DefaultTier], end); i < end; i = m.next(x.nextAfter(i, &p), end) {
		if r := &x.rules[i]; p.decides(r, f) {
			return r, true
		}
	}
	return p.allowed, false
}

// nextAfter returns the first rule after rule i that is still to be evaluated.
func (x *index) nextAfter(i int, p *progress) int {
	if t := x.rules[i].Tier; t == p.passed {
		return x.ends[t]
	}
	return i + 1
}

// hasNetworkPolicy reports whether a NetworkPolicy isolates the pod.
func (x *index) hasNetworkPolicy() bool { return x.ends[AdminTier] < x.ends[NetworkPolicyTier] }

// decideExempt decides about a flow that NetworkPolicy always allows. If no rule of the Admin tier
// decides and a NetworkPolicy isolates the pod, exempt is true and later rules are not evaluated.
func (x *index) decideExempt(f *flow, m *match) (rule *Rule, exempt bool) {
	if !x.hasNetworkPolicy() {
		return x.decide(f, m), false
	}
	rule, decided := x.decideBefore(x.ends[AdminTier], f, m)
	if !decided {
		return nil, true
	}
	return rule, false
}

// depends reports whether the decision about f may differ between no pod at the peer's address,
// where rule decides, and one of who.
func (x *index) depends(who occupants, rule *Rule, f *flow, m *match) bool {
	denied := rule.denies()
	switch {
	case (!denied || who&(newHere|newElsewhere) != 0) && x.mayDenyPeer(f, m):
		return true
	case !denied, who == newElsewhere: // no rule for pods allows it (CN-35)
		return false
	}
	return x.mayAllowPeer(f, m)
}

// mayDenyPeer reports whether unknown labels of the peer may get f denied: an administrator's rule
// that denies or passes pods comes before any rule that decides for every peer. NetworkPolicy
// denies unknown peers, so rules after it do not matter.
func (x *index) mayDenyPeer(f *flow, m *match) bool {
	if len(x.mayDenyPods) == 0 {
		return false
	}
	end := len(x.rules)
	if x.hasNetworkPolicy() {
		end = x.ends[AdminTier]
	}
	return x.peerMayMatch(x.mayDenyPods, end, f, m)
}

// mayAllowPeer reports whether unknown labels of the peer may get f, which is denied, allowed.
func (x *index) mayAllowPeer(f *flow, m *match) bool {
	return x.peerMayMatch(x.mayAllowPods, len(x.rules), f, m)
}

// peerMayMatch reports whether one of rules may match an unknown pod, the peer of f, before a rule
// decides for every peer. All of rules select pods.
func (x *index) peerMayMatch(rules set, end int, f *flow, m *match) bool {
	may := match{anyPeer: rules, anyPort: m.anyPort, ports: m.ports, named: m.named}
	if f.dst == nil {
		may.named = x.namedFor(f.proto) // the pod's named ports are unknown as well
	}
	var p progress
	for i := x.ends[DefaultTier]; ; {
		matched := m.next(i, end)
		if may.next(i, end) < matched {
			return true
		}
		if matched == end || p.decides(&x.rules[matched], f) {
			return false
		}
		i = x.nextAfter(matched, &p)
	}
}
