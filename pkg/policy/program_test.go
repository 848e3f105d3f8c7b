package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// chance makes random rules out of few values, so that they meet.
type chance struct{ *rand.Rand }

func pick[T any](c chance, of ...T) T { return of[c.IntN(len(of))] }

func (c chance) prefix() netip.Prefix {
	addr := netip.AddrFrom4([4]byte{10, byte(c.IntN(2)), byte(c.IntN(2)), byte(c.IntN(4))})
	return netip.PrefixFrom(addr, pick(c, 0, 8, 16, 24, 30, 31, 32)).Masked()
}

func (c chance) peer() Peer {
	switch c.IntN(4) {
	case 0:
		return Peer{}
	case 1:
		return pods(pick(c, "", "pod=a", "pod=b", "pod in (b,c)", "!pod"))
	}
	b := &Block{Prefix: c.prefix()}
	for range c.IntN(3) {
		b.Except = append(b.Except, c.prefix())
	}
	return Peer{Blocks: []Block{*b}}
}

func (c chance) port() Port {
	p := Port{Proto: pick(c, packet.TCP, packet.UDP, packet.SCTP)}
	switch c.IntN(4) {
	case 0:
		p.Name = pick(c, "web", "dns", "db")
	case 1:
		p.Last = 65535
	default:
		p.First = pick[uint16](c, 0, 52, 53, 80, 8080)
		p.Last = p.First + pick[uint16](c, 0, 0, 1, 28, 57000)
	}
	return p
}

func (c chance) rule(tier Tier, index int) Rule {
	r := Rule{Tier: tier, Index: index, Verdict: pick(c, Deny, Allow, Pass), AnyPeer: c.IntN(6) == 0, AnyPort: c.IntN(6) == 0}
	for range c.IntN(3) {
		r.Peers = append(r.Peers, c.peer())
	}
	for range c.IntN(4) {
		r.Ports = append(r.Ports, c.port())
	}
	return r
}

// chain has few rules that match everything, or the others would not count.
func (c chance) chain() *Chain {
	chain := &Chain{}
	for tier := AdminTier; tier <= BaselineTier; tier++ {
		for i := range 1 + c.IntN(2*scanLimit) {
			chain.Rules = append(chain.Rules, c.rule(tier, i))
		}
	}
	return chain
}

func (c chance) flow(of *Snapshot) *flow {
	addr := netip.AddrFrom4([4]byte{10, byte(c.IntN(2)), byte(c.IntN(2)), byte(c.IntN(4))})
	f := &flow{
		peerAddr: addr,
		peer:     of.Endpoint(addr),
		dst:      of.Endpoint(pick(c, addrA, addrB, addrWeb)),
		proto:    pick(c, packet.TCP, packet.TCP, packet.UDP, packet.SCTP, packet.ICMP, packet.Unknown, 50),
	}
	if f.proto.HasPorts() {
		f.dstPort = pick[uint16](c, 0, 51, 52, 53, 54, 80, 81, 108, 109, 8080, 57080, 65535)
	}
	return f
}

// A long chain decides as if it were asked rule by rule.
func TestProgramsDecideAsTheChain(t *testing.T) {
	c := chance{rand.New(rand.NewPCG(1, 0))}
	cluster := snapshot(nil, nil)
	decided := map[string]int{}
	for range 300 {
		chain := c.chain()
		for range 300 {
			f := c.flow(cluster)
			want, got := chain.scan(f), chain.program(f).rule(f.proto, f.dstPort)
			if got != want {
				t.Fatalf("%+v: program says %+v, chain says %+v", f, got, want)
			}
			if want == nil {
				decided["by no rule"]++
			} else {
				decided["in tier "+want.Tier.String()]++
			}
		}
	}
	for _, outcome := range []string{"by no rule", "in tier admin", "in tier networkpolicy", "in tier baseline"} {
		if decided[outcome] < 100 {
			t.Errorf("only %d flows were decided %s: the test asks too little", decided[outcome], outcome)
		}
	}
	t.Log(fmt.Sprint(decided))
}

// What is allowed with hidden ports would be allowed with any.
func TestHiddenPortsAreTheWorstThatTheyCouldBe(t *testing.T) {
	c := chance{rand.New(rand.NewPCG(2, 0))}
	cluster := snapshot(nil, nil)
	var allowed, denied int
	for range 3000 {
		chain := c.chain()
		chain.Rules = chain.Rules[c.IntN(len(chain.Rules)):] // or nearly everything is denied
		if c.IntN(2) == 0 {
			chain.Rules = slices.DeleteFunc(chain.Rules, func(r Rule) bool { return r.Verdict == Deny })
		}
		f := c.flow(cluster)
		f.proto, f.dstPort = pick(c, packet.Unknown, packet.Proto(50), packet.Proto(200)), 0
		rule := chain.scan(f)
		if rule != nil && rule.Verdict == Deny {
			denied++
			continue
		}
		allowed++
		for range 100 {
			shown := *f
			open := c.flow(cluster)
			shown.proto, shown.dstPort = open.proto, open.dstPort
			if r := chain.scan(&shown); r != nil && r.Verdict == Deny {
				t.Fatalf("%+v is allowed by %+v, but %v %d is denied by %+v", f, rule, shown.proto, shown.dstPort, r)
			}
		}
	}
	if allowed < 300 || denied < 300 {
		t.Errorf("%d allowed, %d denied: the test asks too little", allowed, denied)
	}
}

func TestHiddenPorts(t *testing.T) {
	to := func(v Verdict, tier Tier, ports ...Port) Rule {
		r := rule(tier, v)
		r.AnyPort, r.Ports = len(ports) == 0, ports
		return r
	}
	smtp := Port{Proto: packet.TCP, First: 25, Last: 25}
	web, db, none := Port{Name: "web", Proto: packet.TCP}, Port{Name: "db", Proto: packet.Unknown}, Port{First: 1}
	for _, tc := range []struct {
		name  string
		rules []Rule
		want  string
	}{
		{"nothing denies", []Rule{to(Allow, AdminTier, smtp)}, "allow ingress, unmatched"},
		{"a denied port", []Rule{to(Deny, AdminTier, smtp)}, "deny ingress by admin admin rule 0"},
		{"an allowed port before everything is denied", []Rule{to(Allow, AdminTier, smtp), to(Deny, AdminTier)}, "deny ingress by admin admin rule 0"},
		{"everything is allowed before a denied port", []Rule{to(Allow, AdminTier), to(Deny, AdminTier, smtp)}, "allow ingress by admin admin rule 0"},
		{"a denied name that the destination declares", []Rule{to(Deny, AdminTier, web)}, "deny ingress by admin admin rule 0"},
		{"a denied name that it does not declare", []Rule{to(Deny, AdminTier, db)}, "allow ingress, unmatched"},
		{"a port that matches nothing", []Rule{to(Deny, AdminTier, none)}, "allow ingress, unmatched"},
		{"an allowed port of an isolated pod", []Rule{to(Allow, NetworkPolicyTier, smtp), isolate()}, "deny ingress by networkpolicy x/isolating, isolated"},
		{"every port of an isolated pod", []Rule{to(Allow, NetworkPolicyTier), isolate()}, "allow ingress by networkpolicy networkpolicy rule 0"},
		{"a passed port, then everything is denied", []Rule{to(Pass, AdminTier, smtp), to(Deny, AdminTier)}, "deny ingress by admin admin rule 0"},
		{"a passed port, then everything is allowed, of an isolated pod",
			[]Rule{to(Pass, AdminTier, smtp), to(Allow, AdminTier), isolate()}, "deny ingress by networkpolicy x/isolating, isolated"},
		{"a passed port, then everything is allowed", []Rule{to(Pass, AdminTier, smtp), to(Allow, AdminTier), to(Deny, AdminTier)}, "allow ingress by admin admin rule 0"},
		{"a passed port, then everything is allowed, then another tier allows",
			[]Rule{to(Pass, AdminTier, smtp), to(Allow, AdminTier), to(Allow, BaselineTier)}, "allow ingress by baseline baseline rule 0"},
		{"everything is passed, then a port is denied", []Rule{to(Pass, AdminTier), to(Deny, AdminTier, smtp)}, "allow ingress, unmatched"},
	} {
		for _, proto := range []packet.Proto{packet.Unknown, 50, 200} {
			p := tcp(addrB, addrA, 0)
			p.Proto = proto
			chain := &Chain{Rules: tc.rules}
			s := snapshot(chain, nil)
			if got := s.Evaluate(p).String(); got != tc.want {
				t.Errorf("%s: %v: got %q, want %q", tc.name, p, got, tc.want)
			}
			if scanned, programmed := chain.scan(hiddenFlow(s)), chain.program(hiddenFlow(s)).rule(proto, 0); scanned != programmed {
				t.Errorf("%s: %v: scan says %+v, the program %+v", tc.name, p, scanned, programmed)
			}
		}
	}
}

// hiddenFlow is a packet from B to A whose ports are hidden.
func hiddenFlow(s *Snapshot) *flow {
	return &flow{peer: s.Endpoint(addrB), peerAddr: addrB, dst: s.Endpoint(addrA), proto: packet.Unknown}
}

func TestProgramsAreForgottenBeyondTheBound(t *testing.T) {
	chain := &Chain{}
	for range scanLimit + 1 {
		chain.Rules = append(chain.Rules, rule(NetworkPolicyTier, Allow, pods("pod=b")))
	}
	for i := range 2*maxPrograms + 10 {
		peer := &Endpoint{Namespace: "x", Labels: map[string]string{"pod": []string{"b", "c"}[i%2]}}
		if got := chain.decide(&flow{peer: peer}) != nil; got != (i%2 == 0) {
			t.Fatalf("peer %d: matched %v", i, got)
		}
		if n := len(chain.memory.programs); n > maxPrograms {
			t.Fatalf("%d programs are remembered, more than %d", n, maxPrograms)
		}
	}
}

func TestRememberedProgramsAreAskedWithoutAllocation(t *testing.T) {
	c := chance{rand.New(rand.NewPCG(1, 1))}
	chain := c.chain()
	cluster := snapshot(chain, chain)
	p := tcp(addrB, addrA, 8080)
	cluster.Evaluate(p)
	if n := testing.AllocsPerRun(100, func() { cluster.Evaluate(p) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// What the first packet of a new peer costs when as many policies select the
// pod.
func BenchmarkNewProgram(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			chain := &Chain{}
			for i := range n {
				chain.Rules = append(chain.Rules, Rule{
					Verdict: Allow, Tier: NetworkPolicyTier, Index: i,
					Peers: []Peer{pods(fmt.Sprintf("pod=absent-%d", i)), {Blocks: []Block{{Prefix: netip.MustParsePrefix("192.168.0.0/16")}}}},
					Ports: []Port{{Proto: packet.TCP, First: 8080, Last: 8080}},
				})
			}
			chain.Rules = append(chain.Rules, isolate())
			f := &flow{peer: &Endpoint{Namespace: "x", Labels: map[string]string{"pod": "b"}}, peerAddr: addrB, proto: packet.TCP, dstPort: 8080}
			b.ReportAllocs()
			for b.Loop() {
				chain.newProgram(f)
			}
		})
	}
}
