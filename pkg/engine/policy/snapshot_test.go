package policy

import (
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

var (
	addrA   = netip.MustParseAddr("10.0.0.1") // the subject, a local pod
	addrB   = netip.MustParseAddr("10.0.0.2") // a local pod that no policy selects
	addrC   = netip.MustParseAddr("10.0.1.3") // a pod of another node
	addrNew = netip.MustParseAddr("10.0.0.9") // in the node's range, not known
	addrFar = netip.MustParseAddr("10.0.1.9") // in another node's range, not known
	addrWeb = netip.MustParseAddr("192.0.2.7")
)

func tcp(src, dst netip.Addr, port uint16) packet.Packet {
	return packet.Packet{Src: netip.AddrPortFrom(src, 40000), Dst: netip.AddrPortFrom(dst, port), Proto: packet.TCP}
}

func selector(text string) labels.Selector {
	s, err := labels.Parse(text)
	if err != nil {
		panic(err)
	}
	return s
}

func pods(text string) Peer {
	return Peer{Pods: &PodSelector{Namespace: "x", Pods: selector(text)}}
}

func rule(tier Tier, v Action, peers ...Peer) Rule {
	return Rule{Tier: tier, Action: v, Peers: peers, AnyPeer: len(peers) == 0, AnyPort: true, Policy: &Ref{Namespace: "x", Name: tier.String()}}
}

func isolate() Rule {
	return Rule{Tier: NetworkPolicyTier, AnyPeer: true, AnyPort: true, Policy: &Ref{Namespace: "x", Name: "isolating"}, Index: Isolation}
}

// snapshot holds pod a with the given chains, and the pods b and c.
func snapshot(ingress, egress *Chain) *Snapshot {
	a := &Endpoint{Version: NewVersion(), Namespace: "x", Name: "a", Labels: NewLabels(labels.Set{"pod": "a"}), Ingress: ingress, Egress: egress,
		Ports: []NamedPort{{"web", packet.TCP, 8080}, {"dns", packet.UDP, 53}}}
	b := &Endpoint{Version: NewVersion(), Namespace: "x", Name: "b", Labels: NewLabels(labels.Set{"pod": "b"})}
	c := &Endpoint{Version: NewVersion(), Namespace: "x", Name: "c", Labels: NewLabels(labels.Set{"pod": "c"})}
	endpoints := NewEndpoints(map[netip.Addr]*Endpoint{addrA: a, addrB: b, addrC: c})
	return New(Model{
		Endpoints: endpoints,
		Local:     NewLocal(endpoints, []netip.Addr{addrB, addrA}),
		Unknown:   Unknown{Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, Isolating: [directions]bool{Ingress: ingress != nil, Egress: egress != nil}},
	})
}

func TestChainsAreAskedInTierOrder(t *testing.T) {
	for _, tc := range []struct {
		name  string
		chain *Chain
		from  netip.Addr
		want  string
	}{
		{"no chain", nil, addrB, "allow egress, not selected"},
		{"a chain that says nothing", &Chain{}, addrB, "allow ingress, unmatched"},
		{"isolated", &Chain{Rules: []Rule{isolate()}}, addrB, "deny ingress by networkpolicy x/isolating, isolated"},
		{"a rule before isolation", &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow, pods("pod=b")), isolate()}}, addrB, "allow ingress by networkpolicy x/networkpolicy rule 0"},
		{"a rule for another", &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow, pods("pod=c")), isolate()}}, addrB, "deny ingress by networkpolicy x/isolating, isolated"},
		{"admin denies before", &Chain{Rules: []Rule{rule(AdminTier, Deny, pods("pod=b")), rule(NetworkPolicyTier, Allow), isolate()}}, addrB, "deny ingress by admin x/admin rule 0"},
		{"admin allows before", &Chain{Rules: []Rule{rule(AdminTier, Allow, pods("pod=b")), isolate()}}, addrB, "allow ingress by admin x/admin rule 0"},
		{"pass leaves the tier", &Chain{Rules: []Rule{rule(AdminTier, Pass), rule(AdminTier, Deny), rule(BaselineTier, Allow)}}, addrB, "allow ingress by baseline x/baseline rule 0"},
		{"pass meets isolation", &Chain{Rules: []Rule{rule(AdminTier, Pass), rule(AdminTier, Allow), isolate(), rule(BaselineTier, Allow)}}, addrB, "deny ingress by networkpolicy x/isolating, isolated"},
		{"pass out of the last tier", &Chain{Rules: []Rule{rule(BaselineTier, Pass), rule(BaselineTier, Deny)}}, addrB, "allow ingress, unmatched"},
		{"baseline denies", &Chain{Rules: []Rule{rule(BaselineTier, Deny)}}, addrB, "deny ingress by baseline x/baseline rule 0"},
		{"the zero rule matches nothing", &Chain{Rules: []Rule{{Action: Allow}, isolate()}}, addrB, "deny ingress by networkpolicy x/isolating, isolated"},
		{"the zero peer matches nothing", &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow, Peer{}), isolate()}}, addrB, "deny ingress by networkpolicy x/isolating, isolated"},
		{"selectors match pods only", &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow, pods("")), isolate()}}, addrWeb, "deny ingress by networkpolicy x/isolating, isolated"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := tcp(tc.from, addrA, 80)
			if got := snapshot(tc.chain, nil).Evaluate(Query{Packet: p}).String(); got != tc.want {
				t.Errorf("%v: got %q, want %q", p, got, tc.want)
			}
		})
	}
}

func TestBothDirectionsMustAllow(t *testing.T) {
	closed := &Chain{Rules: []Rule{isolate()}}
	open := &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow), isolate()}}
	some := &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow, pods("pod=c")), isolate()}}
	for _, tc := range []struct {
		name            string
		ingress, egress *Chain
		packet          packet.Packet
		want            string
	}{
		{"out of an open pod", nil, open, tcp(addrA, addrB, 80), "allow egress by networkpolicy x/networkpolicy rule 0"},
		{"out of a closed pod", nil, closed, tcp(addrA, addrB, 80), "deny egress by networkpolicy x/isolating, isolated"},
		{"egress does not matter into it", open, closed, tcp(addrB, addrA, 80), "allow ingress by networkpolicy x/networkpolicy rule 0"},
		{"ingress does not matter out of it", closed, open, tcp(addrA, addrC, 80), "allow egress by networkpolicy x/networkpolicy rule 0"},
		{"a pod reaches itself", closed, closed, tcp(addrA, addrA, 80), "allow ingress, hairpin"},
		{"neither end is ours", closed, closed, tcp(addrC, addrWeb, 80), "allow egress, not selected"},
		{"too new a pod sends", nil, closed, tcp(addrNew, addrC, 80), "deny egress, unknown pod"},
		{"too new a pod receives", closed, nil, tcp(addrC, addrNew, 80), "deny ingress, unknown pod"},
		{"too new a pod, nothing isolates", nil, nil, tcp(addrC, addrNew, 80), "allow egress, not selected"},
		{"too new a pod, the other direction isolates", nil, closed, tcp(addrC, addrNew, 80), "allow egress, not selected"},
		{"a pod that allows some pods hears too new a pod", some, nil, tcp(addrNew, addrA, 80), "deny ingress, unknown pod"},
		{"a pod that allows some pods calls too new a pod", closed, some, tcp(addrA, addrNew, 80), "deny egress, unknown pod"},
		{"a closed pod hears too new a pod", closed, nil, tcp(addrNew, addrA, 80), "deny ingress by networkpolicy x/isolating, isolated"},
		{"a closed pod calls too new a pod", nil, closed, tcp(addrA, addrNew, 80), "deny egress by networkpolicy x/isolating, isolated"},
		{"a denial for good goes before", &Chain{Rules: []Rule{rule(AdminTier, Deny)}}, closed, tcp(addrNew, addrA, 80), "deny ingress by admin x/admin rule 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := snapshot(tc.ingress, tc.egress).Evaluate(Query{Packet: tc.packet}).String(); got != tc.want {
				t.Errorf("%v: got %q, want %q", tc.packet, got, tc.want)
			}
		})
	}
}

// TestSourcesThatMayBeNewPods: packets of an unknown source wait only if the decision would differ
// for one of the pods without an address.
func TestSourcesThatMayBeNewPods(t *testing.T) {
	c, d := &Endpoint{Namespace: "x", Name: "c", Labels: NewLabels(labels.Set{"pod": "c"})}, &Endpoint{Namespace: "x", Name: "d", Labels: NewLabels(labels.Set{"pod": "d"})}
	many := slices.Repeat([]*Endpoint{d}, MaxNewcomers+1)
	allows := &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow, pods("pod=c")), isolate()}}
	denies := &Chain{Rules: []Rule{rule(AdminTier, Deny, pods("pod=c")), rule(NetworkPolicyTier, Allow)}}
	port81 := &Chain{Rules: []Rule{{Tier: NetworkPolicyTier, Action: Allow, Peers: []Peer{pods("pod=c")}, Ports: []Port{{Proto: packet.TCP, First: 81, Last: 81}}}, isolate()}}
	const waits, denied = "deny ingress, unknown source", "deny ingress by networkpolicy x/isolating, isolated"
	const allowed = "allow ingress by networkpolicy x/networkpolicy rule 0"
	for _, tc := range []struct {
		name      string
		chain     *Chain
		newcomers []*Endpoint
		ranges    string // of pods, if they are known
		src       netip.Addr
		last      bool
		want      string
	}{
		{"one that is allowed", allows, []*Endpoint{d, c}, "", addrFar, false, waits},
		{"one that is denied", denies, []*Endpoint{c}, "", addrFar, false, waits},
		{"none", allows, nil, "", addrFar, false, denied},
		{"none that is allowed", allows, []*Endpoint{d}, "", addrFar, false, denied},
		{"none that is denied", denies, []*Endpoint{d}, "", addrFar, false, allowed},
		{"more than are evaluated", allows, many, "", addrFar, false, waits},
		{"more than are evaluated, and no rule for pods", &Chain{Rules: []Rule{isolate()}}, many, "", addrFar, false, denied},
		{"another port", port81, []*Endpoint{c}, "", addrFar, false, denied},
		{"it cannot wait any longer and is denied", allows, []*Endpoint{c}, "", addrFar, true, denied},
		{"it cannot wait any longer and is allowed", denies, []*Endpoint{c}, "", addrFar, true, allowed},
		{"a known pod", allows, []*Endpoint{c}, "", addrB, false, denied},
		{"in a range of pods", allows, []*Endpoint{c}, "10.0.1.0/24", addrFar, false, waits},
		{"outside of all ranges of pods", allows, []*Endpoint{c}, "10.0.1.0/24", addrWeb, false, denied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := snapshot(tc.chain, nil)
			s.m.Newcomers = tc.newcomers
			if tc.ranges != "" {
				s.m.PodRanges = NewPodRanges([]netip.Prefix{netip.MustParsePrefix(tc.ranges)}, nil)
			}
			if got := s.Evaluate(Query{Packet: tcp(tc.src, addrA, 80), AwaitSource: !tc.last}).String(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPorts(t *testing.T) {
	port := func(p Port) *Chain {
		return &Chain{Rules: []Rule{{Tier: NetworkPolicyTier, Action: Allow, AnyPeer: true, Ports: []Port{p}}, isolate()}}
	}
	with := func(proto packet.Proto, port uint16) packet.Packet {
		p := tcp(addrB, addrA, port)
		p.Proto = proto
		return p
	}
	for _, tc := range []struct {
		name   string
		port   Port
		packet packet.Packet
		want   Action
	}{
		{"first of the range", Port{Proto: packet.TCP, First: 80, Last: 90}, with(packet.TCP, 80), Allow},
		{"last of the range", Port{Proto: packet.TCP, First: 80, Last: 90}, with(packet.TCP, 90), Allow},
		{"below the range", Port{Proto: packet.TCP, First: 80, Last: 90}, with(packet.TCP, 79), Deny},
		{"above the range", Port{Proto: packet.TCP, First: 80, Last: 90}, with(packet.TCP, 91), Deny},
		{"another protocol", Port{Proto: packet.TCP, First: 80, Last: 90}, with(packet.SCTP, 80), Deny},
		{"ICMP has no ports", Port{Proto: packet.TCP, Last: 65535}, with(packet.ICMP, 0), Deny},
		{"hidden ports are not allowed", Port{Proto: packet.TCP, Last: 65535}, with(packet.Unknown, 0), Deny},
		{"named", Port{Proto: packet.TCP, Name: "web"}, with(packet.TCP, 8080), Allow},
		{"named, another number", Port{Proto: packet.TCP, Name: "web"}, with(packet.TCP, 80), Deny},
		{"named, another protocol", Port{Proto: packet.TCP, Name: "dns"}, with(packet.UDP, 53), Deny},
		{"named, not declared", Port{Proto: packet.TCP, Name: "db"}, with(packet.TCP, 8080), Deny},
		{"the zero port matches nothing", Port{}, with(packet.TCP, 80), Deny},
		{"the zero port matches nothing at all", Port{}, with(0, 0), Deny},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := snapshot(port(tc.port), nil).Evaluate(Query{Packet: tc.packet}).Action; got != tc.want {
				t.Errorf("%v: got %v, want %v", tc.packet, got, tc.want)
			}
		})
	}
	egress := snapshot(nil, port(Port{Proto: packet.TCP, Name: "web"}))
	if got := egress.Evaluate(Query{Packet: tcp(addrA, addrWeb, 8080)}).Action; got != Deny {
		t.Errorf("a named port matched a destination that is no pod: %v", got)
	}
}

func TestSelectedAreLocalPodsWithAChain(t *testing.T) {
	s := snapshot(&Chain{}, nil)
	if got := s.Selected(Ingress); len(got) != 1 || got[0] != addrA {
		t.Errorf("ingress selects %v, want %v", got, addrA)
	}
	if got := s.Selected(Egress); len(got) != 0 {
		t.Errorf("egress selects %v, want none", got)
	}
	if got := s.Ranges(Ingress); len(got) != 1 {
		t.Errorf("ingress isolates but has ranges %v", got)
	}
	if got := s.Ranges(Egress); got != nil {
		t.Errorf("egress does not isolate but has ranges %v", got)
	}
}

func TestEvaluateDoesNotAllocate(t *testing.T) {
	chain := &Chain{Rules: []Rule{
		rule(AdminTier, Pass, pods("pod in (b, c)")),
		rule(NetworkPolicyTier, Allow, Peer{Blocks: []Block{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}}}),
		{Tier: NetworkPolicyTier, Action: Allow, AnyPeer: true, Ports: []Port{{Proto: packet.TCP, Name: "web"}}},
		isolate(),
	}}
	s := snapshot(chain, chain)
	s.m.PodRanges = NewPodRanges([]netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}, []netip.Addr{addrWeb})
	for _, p := range []packet.Packet{tcp(addrB, addrA, 80), tcp(addrA, addrC, 8080), tcp(addrWeb, addrA, 1), tcp(addrNew, addrA, 8080),
		tcp(addrA, addrFar, 80), tcp(addrA, addrWeb, 80), {Src: tcp(addrB, addrA, 0).Src, Dst: tcp(addrB, addrA, 0).Dst, Proto: packet.Unknown}} {
		if n := testing.AllocsPerRun(100, func() { s.Evaluate(Query{Packet: p}) }); n != 0 {
			t.Errorf("%v: %v allocations, want 0", p, n)
		}
	}
}
