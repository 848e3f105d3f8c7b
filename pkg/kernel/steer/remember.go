package steer

import (
	"time"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// The kernel remembers verdicts so that it need not queue every first packet. Packets that the agent
// accepted with both marks add elements to the sets of allowed classes; DenyClasses adds elements
// to the sets of denied classes. Elements have a timeout, and are flushed whenever another process
// may have added some.
//
// Packets that would be queued at postrouting, or at prerouting with EarlyOn, are looked up first.
// Packets for the node itself are neither looked up nor remembered, because other policies apply to
// them.
const (
	rememberedChain = "remembered" // looks up packets before they are queued
	rememberChain   = "remember"   // for accepted packets with both marks
	staleChain      = "stale"      // for packets of a family with a stale address

	allowedSet = "allowed"
	deniedSet  = "denied"

	// allowedSize and deniedSize bound the kernel's memory: an element takes about 130 bytes.
	// Packets of classes that do not fit are queued.
	allowedSize = 1 << 16
	deniedSize  = 1 << 14
)

// Remembered is the Part for remembered verdicts. Its methods may be called from any goroutine.
type Remembered struct {
	// For is how long a class is remembered as allowed, in whole seconds. With zero there is no such part.
	For time.Duration

	steerer *Steerer // nil until New
	missing error    // what the kernel lacks
}

func (r *Remembered) part() part {
	return part{
		chains: r.chains, sets: verdictObjects, volatile: true, ask: rememberedChain,
		rules: map[joint]func(Config) []rule.Rule{afterVerdict: acceptedClassRules, beforeAnswers: answeredClassRules},
	}
}

func (r *Remembered) begin(s *Steerer, caps Capabilities) bool {
	r.steerer, r.missing = s, caps.Remember
	return r.missing == nil && r.For != 0
}

// Missing returns what the kernel lacks to remember verdicts, nil if it lacks nothing.
func (r *Remembered) Missing() error { return r.missing }

// verdictSet is a set of remembered verdicts.
type verdictSet struct {
	name         string
	denied, ipv6 bool
}

var verdictSets = func() []verdictSet {
	var sets []verdictSet
	for _, name := range []string{allowedSet, deniedSet} {
		for _, f := range families {
			sets = append(sets, verdictSet{familyName(name, f.ipv6), name == deniedSet, f.ipv6})
		}
	}
	return sets
}()

// object returns the set. It has no default timeout, because each element has its own.
func (v verdictSet) object() *knftables.Set {
	set := &knftables.Set{Name: v.name, Type: "ipv4_addr . ipv4_addr . inet_proto . inet_service"}
	if v.ipv6 {
		set.Type = "ipv6_addr . ipv6_addr . inet_proto . inet_service"
	}
	// Without the flag dynamic, nft refuses elements with a counter.
	set.Flags, set.Size = []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag}, knftables.PtrTo(uint64(allowedSize))
	if v.denied {
		set.Size = knftables.PtrTo(uint64(deniedSize))
	}
	return set
}

func verdictObjects() []*knftables.Set {
	var sets []*knftables.Set
	for _, set := range verdictSets {
		sets = append(sets, set.object())
	}
	return sets
}

func (r *Remembered) chains(cfg Config) []chain {
	return []chain{
		{name: staleChain, rules: staleRules(cfg)},
		{name: rememberedChain, rules: rememberedRules(cfg)},
		{name: rememberChain, rules: r.rememberRules()},
	}
}

// class is the class of a packet of this family. It uses the protocol of the IP header: in a packet with
// extension headers that is the type of the first one, which no element contains.
func (f family) class() rule.Key { return rule.Key{f.Saddr, f.Daddr, f.Proto, rule.THDport} }

// rememberedRules apply remembered verdicts.
func rememberedRules(cfg Config) []rule.Rule {
	rules := []rule.Rule{{ofStale, rule.Jump(staleChain)}}
	for _, f := range families {
		rules = append(rules,
			rule.Rule{f.class().In(f.set(deniedSet)), rule.Drop},
			// Marks the connection like keepRules. For packets without a connection, such as
			// invalid ones, the rule ends before accept, so that the agent decides them.
			rule.Rule{f.class().In(f.set(allowedSet)), rule.CTMark.Set(cfg.Mark), rule.Accept})
	}
	return append(rules, rule.Rule{rule.Goto(cfg.decideChain())})
}

// staleRules queue packets of stale addresses: no verdict may be remembered or applied until the
// connections of the pod that had the address before are removed.
func staleRules(cfg Config) []rule.Rule {
	var rules []rule.Rule
	for _, f := range families {
		rules = append(rules,
			rule.Rule{f.Saddr.In(f.set(staleSet)), rule.Goto(cfg.decideChain())},
			rule.Rule{f.Daddr.In(f.set(staleSet)), rule.Goto(cfg.decideChain())})
	}
	return rules
}

// rememberRules add the class of a packet. If the set is full or memory is short, the rule just ends.
// Each rule looks up the class first, because an element should count, apart from the packet that
// adds it, only packets that were not queued.
func (r *Remembered) rememberRules() []rule.Rule {
	var rules []rule.Rule
	for _, f := range families {
		plain := f.Proto.OneOf(rule.TCP, rule.UDP) // no extension headers
		// The statement is add, not update: packets must not renew the timeout, which bounds
		// how long a class is allowed without the agent.
		rules = append(rules, rule.Rule{plain, f.class().NotIn(f.set(allowedSet)),
			rule.Add{Set: f.set(allowedSet), Key: f.class(), Seconds: uint32(r.For / time.Second)}})
	}
	return rules
}

// acceptedClassRules remember the verdict on a packet if the agent has requested it.
func acceptedClassRules(cfg Config) []rule.Rule {
	return []rule.Rule{{rule.MetaMark.Has(cfg.BlockMark), rule.Jump(rememberChain)}}
}

// answeredClassRules answer packets of denied classes.
func answeredClassRules(Config) []rule.Rule {
	var rules []rule.Rule
	for _, f := range families {
		for _, end := range f.addresses() {
			rules = append(rules, rule.Rule{end.In(f.set(answeredSet)), f.class().In(f.set(deniedSet)), rule.Goto(answerChain)})
		}
	}
	return rules
}
