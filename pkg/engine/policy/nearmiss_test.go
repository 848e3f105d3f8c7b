package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// TestMissedNames: a rule that names domains missed a packet if one of its names would allow it.
func TestMissedNames(t *testing.T) {
	named := func(action Action, names ...string) Rule {
		var domains []Domain
		for _, name := range names {
			domains = append(domains, Domain{Name: name})
		}
		return rule(AdminTier, action, Peer{Domains: domains})
	}
	onPort := func(r Rule, port uint16) Rule {
		r.AnyPort, r.Ports = false, []Port{{Proto: packet.TCP, First: port, Last: port}}
		return r
	}
	rest := rule(AdminTier, Deny)
	for _, tc := range []struct {
		name  string
		rules []Rule
		to    netip.Addr
		want  string
	}{
		{"no names", []Rule{rest}, addrWeb, "[]"},
		{"all names of all rules", []Rule{named(Allow, "a.test", "b.test"), named(Allow, "c.test"), rest}, addrWeb, "[a.test b.test c.test]"},
		{"after the denial", []Rule{rest, named(Allow, "a.test")}, addrWeb, "[]"},
		{"before isolation", []Rule{named(Allow, "a.test"), rule(NetworkPolicyTier, Deny)}, addrWeb, "[a.test]"},
		{"another port", []Rule{onPort(named(Allow, "a.test"), 80), onPort(named(Allow, "b.test"), 443), rest}, addrWeb, "[b.test]"},
		{"after a pass", []Rule{rule(AdminTier, Pass), named(Allow, "a.test"), rule(BaselineTier, Deny)}, addrWeb, "[]"},
		{"before a pass", []Rule{named(Allow, "a.test"), rule(AdminTier, Pass), rule(BaselineTier, Deny)}, addrWeb, "[a.test]"},
		{"names that deny", []Rule{named(Deny, "a.test"), rest}, addrWeb, "[]"},
		{"a special address", []Rule{named(Allow, "a.test"), rest}, netip.MustParseAddr("169.254.169.254"), "[]"},
		{"a pod", []Rule{named(Allow, "a.test", "a.x.svc.cluster.local"), rest}, addrC, "[a.x.svc.cluster.local]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := snapshot(nil, &Chain{Rules: tc.rules})
			if got := fmt.Sprint(s.MissedNames(Query{Packet: tcp(addrA, tc.to, 443)})); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}

	s := snapshot(nil, &Chain{Rules: []Rule{named(Allow, "a.test"), named(Allow, "b.test"), rest}})
	learned := Query{Packet: tcp(addrA, addrWeb, 443), Learned: anyAddress{&Names{"b.test"}}}
	if got := s.MissedNames(learned); got != nil {
		t.Errorf("got %v for a packet that a name allows", got)
	}
	if got := s.MissedNames(Query{Packet: tcp(addrWeb, addrA, 443)}); got != nil {
		t.Errorf("got %v for a packet of no pod", got)
	}
	many := &Chain{Rules: slices.Concat(slices.Repeat([]Rule{named(Allow, "a.test", "b.test")}, maxItems), []Rule{rest})}
	if got := snapshot(nil, many).MissedNames(Query{Packet: tcp(addrA, addrWeb, 443)}); len(got) != maxItems {
		t.Errorf("got %d domains, want the bound of %d", len(got), maxItems)
	}
}

// TestMissedNamesWouldAllow compares random rules with what becomes of packets if a name is learned.
func TestMissedNamesWouldAllow(t *testing.T) {
	denied, missed := 0, 0
	for seed := range uint64(1000) {
		c := chance{rand.New(rand.NewPCG(seed, 0))}
		chain := c.chain()
		for i := range chain.Rules {
			if r := &chain.Rules[i]; r.NamesDomains() {
				r.Action = Allow // as compile makes them
			}
		}
		e := c.ends()
		e.pods[addrA] = &Endpoint{Version: NewVersion(), Namespace: "x", Egress: chain}
		s := New(Model{Endpoints: NewEndpoints(e.pods)})
		egress := func(q Query) *Decision {
			e := s.Explain(q)
			return &e.Directions[Egress].Decision
		}
		q := Query{Packet: tcp(addrA, pick(c, addrWeb, c.addr()), pick[uint16](c, 53, 80, 8080))}
		if !egress(q).isFinalDenial() {
			continue
		}
		denied++
		got := s.MissedNames(q)
		for i := range chain.Rules {
			for _, p := range chain.Rules[i].Peers {
				for _, d := range p.Domains {
					if !allowsWith(d, q, egress) {
						continue
					}
					missed++
					if !slices.ContainsFunc(got, func(m Domain) bool { return allowsWith(m, q, egress) }) {
						t.Fatalf("seed %d: %v would allow the packet, and MissedNames returns %v", seed, d, got)
					}
				}
			}
		}
		for _, d := range got {
			if !allowsWith(d, q, egress) {
				t.Fatalf("seed %d: %v would not allow the packet", seed, d)
			}
		}
	}
	if denied < 100 || missed < 100 {
		t.Errorf("only %d packets were denied, %d of them would be allowed by a name", denied, missed)
	}
}

// allowsWith reports whether a learned name of d would allow q.
func allowsWith(d Domain, q Query, egress func(Query) *Decision) bool {
	return slices.ContainsFunc(d.Examples(), func(name string) bool {
		q.Learned = anyAddress{&Names{name}}
		return egress(q).Allowed()
	})
}
