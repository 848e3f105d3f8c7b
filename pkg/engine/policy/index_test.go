package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// scanExempt is decideExempt, rule by rule.
func (c *Chain) scanExempt(f *flow) (rule *Rule, exempt bool) {
	var p progress
	for i := range c.Rules {
		r := &c.Rules[i]
		if r.Tier == NetworkPolicyTier {
			return nil, true
		}
		if p.reaches(r) && r.matches(f) && p.decides(r, f) {
			return r, false
		}
	}
	return p.allowed, false
}

// scanMayDenyPeer is mayDenyPeer, rule by rule.
func (c *Chain) scanMayDenyPeer(f *flow) bool {
	var p progress
	for i := range c.Rules {
		r := &c.Rules[i]
		switch {
		case r.Tier == NetworkPolicyTier:
			return false
		case !p.reaches(r):
		case r.matches(f):
			if p.decides(r, f) {
				return false
			}
		case r.Action != Allow && r.mayMatch(f):
			return true
		}
	}
	return false
}

// scanMayAllowPeer is mayAllowPeer, rule by rule.
func (c *Chain) scanMayAllowPeer(f *flow) bool {
	var p progress
	for i := range c.Rules {
		r := &c.Rules[i]
		switch {
		case !p.reaches(r):
		case r.matches(f):
			if p.decides(r, f) {
				return false
			}
		case r.Action == Allow && f.proto.Hidden() && !r.AnyPort: // NP-44
		case r.Action != Deny && r.mayMatch(f):
			return true
		}
	}
	return false
}

// mayMatch reports whether f matches r if r selects its peer. The named ports of an unknown
// destination are unknown as well.
func (r *Rule) mayMatch(f *flow) bool {
	return r.selectsPods() &&
		(r.matchesPort(f) || f.dst == nil && r.namesPort(f.proto))
}

func (r *Rule) namesPort(proto packet.Proto) bool {
	return slices.ContainsFunc(r.Ports, func(p Port) bool {
		return p.Name != "" && (proto.Hidden() || p.isFor(proto) && proto.HasPorts())
	})
}

// An index decides as rule-by-rule evaluation does, whatever is cached for this chain and for other
// chains.
func TestIndexDecidesAsTheChain(t *testing.T) {
	c := chance{rand.New(rand.NewPCG(1, 0))}
	decided := map[string]int{}
	for i := range 300 {
		chains, e := []*Chain{c.chain(), c.chain(), c.chain()}, c.ends()
		if i%10 == 0 {
			chains[0] = c.long(chains[0])
		}
		for range 200 {
			chain, f := pick(c, chains...), c.flow(e)
			x := chain.prepare()
			var m match
			x.match(f, &m)
			want, got := chain.scan(f), x.decide(f, &m)
			if got != want {
				t.Fatalf("%+v: index says %+v, chain says %+v", f, got, want)
			}
			rule, exempt := x.decideExempt(f, &m)
			if wantRule, wantExempt := chain.scanExempt(f); rule != wantRule || exempt != wantExempt {
				t.Fatalf("%+v: index says %+v, %v of an exempt flow, chain says %+v, %v", f, rule, exempt, wantRule, wantExempt)
			}
			if f.peer == nil {
				if got, want := x.mayDenyPeer(f, &m), chain.scanMayDenyPeer(f); got != want {
					t.Fatalf("%+v: turns on the peer %v, want %v", f, got, want)
				} else if want {
					decided["by who the peer is"]++
				}
				if got, want := x.mayAllowPeer(f, &m), chain.scanMayAllowPeer(f); got != want {
					t.Fatalf("%+v: may be allowed for its peer %v, want %v", f, got, want)
				} else if want {
					decided["unless a rule allows the peer"]++
				}
			}
			if want == nil {
				decided["by no rule"]++
			} else {
				decided["in tier "+want.Tier.String()]++
			}
		}
	}
	for _, outcome := range []string{"by no rule", "by who the peer is", "unless a rule allows the peer", "in tier admin", "in tier networkpolicy", "in tier baseline"} {
		if decided[outcome] < 100 {
			t.Errorf("only %d flows were decided %s: the test asks too little", decided[outcome], outcome)
		}
	}
	t.Log(fmt.Sprint(decided))
}
