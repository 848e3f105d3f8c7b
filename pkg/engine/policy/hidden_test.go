package policy

import (
	"math/rand/v2"
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// A packet that is allowed with hidden ports would be allowed with any ports.
func TestHiddenPortsAreTheWorstThatTheyCouldBe(t *testing.T) {
	c := chance{rand.New(rand.NewPCG(2, 0))}
	e := c.ends()
	var allowed, denied int
	for range 3000 {
		chain := c.chain()
		chain.Rules = chain.Rules[c.IntN(1+len(chain.Rules)):] // otherwise nearly everything is denied
		if c.IntN(2) == 0 {
			chain.Rules = slices.DeleteFunc(chain.Rules, func(r Rule) bool { return r.Action == Deny })
		}
		f := c.flow(e)
		f.proto, f.dstPort = pick(c, packet.Unknown, packet.Proto(50), packet.Proto(200)), 0
		rule := chain.scan(f)
		if rule != nil && rule.Action == Deny {
			denied++
			continue
		}
		allowed++
		for range 100 {
			shown := *f
			open := c.flow(e)
			shown.proto, shown.dstPort = open.proto, open.dstPort
			if r := chain.scan(&shown); r != nil && r.Action == Deny {
				t.Fatalf("%+v is allowed by %+v, but %v %d is denied by %+v", f, rule, shown.proto, shown.dstPort, r)
			}
		}
	}
	if allowed < 300 || denied < 300 {
		t.Errorf("%d allowed, %d denied: the test asks too little", allowed, denied)
	}
}

func TestHiddenPorts(t *testing.T) {
	to := func(v Action, tier Tier, ports ...Port) Rule {
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
		{"a denied port", []Rule{to(Deny, AdminTier, smtp)}, "deny ingress by admin x/admin rule 0"},
		{"an allowed port before everything is denied", []Rule{to(Allow, AdminTier, smtp), to(Deny, AdminTier)}, "deny ingress by admin x/admin rule 0"},
		{"everything is allowed before a denied port", []Rule{to(Allow, AdminTier), to(Deny, AdminTier, smtp)}, "allow ingress by admin x/admin rule 0"},
		{"a denied name that the destination declares", []Rule{to(Deny, AdminTier, web)}, "deny ingress by admin x/admin rule 0"},
		{"a denied name that it does not declare", []Rule{to(Deny, AdminTier, db)}, "allow ingress, unmatched"},
		{"a port that matches nothing", []Rule{to(Deny, AdminTier, none)}, "allow ingress, unmatched"},
		{"an allowed port of an isolated pod", []Rule{to(Allow, NetworkPolicyTier, smtp), isolate()}, "deny ingress by networkpolicy x/isolating, isolated"},
		{"every port of an isolated pod", []Rule{to(Allow, NetworkPolicyTier), isolate()}, "allow ingress by networkpolicy x/networkpolicy rule 0"},
		{"a passed port, then everything is denied", []Rule{to(Pass, AdminTier, smtp), to(Deny, AdminTier)}, "deny ingress by admin x/admin rule 0"},
		{"a passed port, then everything is allowed, of an isolated pod",
			[]Rule{to(Pass, AdminTier, smtp), to(Allow, AdminTier), isolate()}, "deny ingress by networkpolicy x/isolating, isolated"},
		{"a passed port, then everything is allowed", []Rule{to(Pass, AdminTier, smtp), to(Allow, AdminTier), to(Deny, AdminTier)}, "allow ingress by admin x/admin rule 0"},
		{"a passed port, then everything is allowed, then another tier allows",
			[]Rule{to(Pass, AdminTier, smtp), to(Allow, AdminTier), to(Allow, BaselineTier)}, "allow ingress by baseline x/baseline rule 0"},
		{"everything is passed, then a port is denied", []Rule{to(Pass, AdminTier), to(Deny, AdminTier, smtp)}, "allow ingress, unmatched"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, proto := range []packet.Proto{packet.Unknown, 50, 200} {
				p := tcp(addrB, addrA, 0)
				p.Proto = proto
				chain := &Chain{Rules: tc.rules}
				s := snapshot(chain, nil)
				if got := s.Evaluate(Query{Packet: p}).String(); got != tc.want {
					t.Errorf("%v: got %q, want %q", p, got, tc.want)
				}
			}
		})
	}
}
