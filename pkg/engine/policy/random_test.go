package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// chance makes random rules from few values, so that rules and packets often match.
type chance struct{ *rand.Rand }

func pick[T any](c chance, of ...T) T { return of[c.IntN(len(of))] }

func (c chance) prefix() netip.Prefix {
	addr := netip.AddrFrom4([4]byte{10, byte(c.IntN(2)), byte(c.IntN(2)), byte(c.IntN(4))})
	return netip.PrefixFrom(addr, pick(c, 0, 8, 16, 24, 30, 31, 32)).Masked()
}

func (c chance) peer() Peer {
	switch c.IntN(8) {
	case 0:
		return Peer{}
	case 1:
		return pods(pick(c, "", "pod=a", "pod=b", "pod in (b,c)", "!pod", "pod", "pod notin (a)", "tier=1,pod=b", "tier>0"))
	case 2:
		return Peer{Pods: &PodSelector{Namespaces: selector(pick(c, "", "team=red", "!team", "team")), Pods: selector(pick(c, "", "pod=b", "pod!=b")), Accounts: pick(c, nil, nil, []string{"s"}, []string{"t", "s", "t"})}}
	case 3:
		return Peer{Nodes: selector(pick(c, "", "zone=1", "!zone", "zone in (2,3)"))}
	case 4:
		domains := []Domain{{Name: pick(c, "a.test", "test", "b.a.test")}}
		if c.IntN(2) == 0 {
			domains = append(domains, Domain{Name: pick(c, "a.test", "test", "cluster.local"), Below: true})
		}
		return Peer{Domains: domains}
	case 5:
		return Peer{Pods: &PodSelector{Namespace: "x", Pods: labels.Nothing()}}
	}
	var p Peer
	for range 1 + c.IntN(3) {
		b := Block{Prefix: c.prefix()}
		for range c.IntN(3) {
			b.Except = append(b.Except, c.prefix())
		}
		p.Blocks = append(p.Blocks, b)
	}
	return p
}

func (c chance) port() Port {
	p := Port{Proto: pick(c, packet.TCP, packet.UDP, packet.SCTP)}
	switch c.IntN(4) {
	case 0:
		p.Name = pick(c, "web", "dns", "db")
		p.Proto = pick(c, p.Proto, packet.Unknown)
	case 1:
		p.Last = 65535
	default:
		p.First = pick[uint16](c, 0, 52, 53, 80, 8080)
		p.Last = p.First + pick[uint16](c, 0, 0, 1, 28, 57000)
	}
	return p
}

func (c chance) rule(tier Tier, index int) Rule {
	r := Rule{Tier: tier, Index: index, Action: pick(c, Deny, Allow, Pass), AnyPeer: c.IntN(6) == 0, AnyPort: c.IntN(6) == 0}
	for range c.IntN(3) {
		r.Peers = append(r.Peers, c.peer())
	}
	for range c.IntN(4) {
		r.Ports = append(r.Ports, c.port())
	}
	return r
}

// chain has few rules that match everything, because they hide later rules.
func (c chance) chain() *Chain {
	chain := &Chain{}
	for tier := AdminTier; tier <= BaselineTier; tier++ {
		for i := range c.IntN(pick(c, 1, 4, 32)) {
			chain.Rules = append(chain.Rules, c.rule(tier, i))
		}
	}
	return chain
}

// long adds rules that match nothing to each tier, so that a chain has several
// pages.
func (c chance) long(chain *Chain) *Chain {
	var rules []Rule
	for i, r := range chain.Rules {
		if i == 0 || r.Tier != chain.Rules[i-1].Tier {
			rules = append(rules, slices.Repeat([]Rule{{Tier: r.Tier}}, c.IntN(2*pageRules))...)
		}
		rules = append(rules, r)
	}
	return &Chain{Rules: rules}
}

// ends are the pods, nodes and names of random flows.
type ends struct {
	pods  map[netip.Addr]*Endpoint
	hosts []*Host
	names []*Names
}

func (c chance) ends() ends {
	e := ends{
		pods:  make(map[netip.Addr]*Endpoint),
		hosts: []*Host{nil, {{"zone": "1"}}, {{}, {"zone": "2"}}},
		names: []*Names{nil, {"a.test"}, {"b.a.test", "test"}, {"c.other"}, {"a.x.svc.cluster.local", "a.test"}},
	}
	for range 8 {
		p := &Endpoint{Version: NewVersion(), Namespace: pick(c, "x", "y"), Account: pick(c, "s", "t", "u"), Labels: c.labels(),
			NamespaceLabels: pick(c, Labels{}, c.with(labels.Set{}), c.with(labels.Set{"team": "red"}), c.with(labels.Set{"team": "blue"}))}
		for range c.IntN(5) {
			p.Ports = append(p.Ports, NamedPort{pick(c, "web", "dns", "db", "x"), pick(c, packet.TCP, packet.UDP, packet.SCTP), pick[uint16](c, 53, 80, 8080)})
		}
		p.Ports = SortPorts(p.Ports)
		e.pods[c.addr()] = p
	}
	return e
}

// labels are those of a pod.
func (c chance) labels() Labels {
	return pick(c, Labels{}, c.with(labels.Set{}), c.with(labels.Set{"pod": "a"}), c.with(labels.Set{"pod": "b", "tier": pick(c, "1", "2", "x")}), c.with(labels.Set{"pod": "c"}))
}

// with adds labels that no selector reads: none, some, or more than maxPacked.
func (c chance) with(l labels.Set) Labels {
	l = maps.Clone(l)
	for i := range pick(c, 0, 1, 2, maxPacked+1) {
		l[fmt.Sprint("unread", i)] = fmt.Sprint(c.IntN(1000))
	}
	return NewLabels(l)
}

func (c chance) addr() netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(c.IntN(2)), byte(c.IntN(2)), byte(c.IntN(4))})
}

func (c chance) flow(e ends) *flow {
	addr := c.addr()
	f := &flow{
		peerAddr: addr,
		peer:     e.pods[addr],
		dst:      e.pods[c.addr()],
		host:     pick(c, e.hosts...),
		names:    pick(c, e.names...),
		scope:    pick(c, noNames, clusterNames, allNames, allNames),
		proto:    pick(c, packet.TCP, packet.TCP, packet.UDP, packet.SCTP, packet.ICMP, packet.Unknown, 50),
	}
	if f.proto.HasPorts() {
		f.dstPort = pick[uint16](c, 0, 51, 52, 53, 54, 80, 81, 108, 109, 8080, 57080, 65535)
	}
	return f
}
