package steer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/knftables"
)

// The kernel remembers verdicts, so that it need not ask again: the sets of allowed
// classes get elements from packets that the agent has accepted with RememberMark, those
// of denied classes from DenyClasses. Elements have a timeout, and are flushed whenever
// another process may have added some.
//
// Packets that would be queued at postrouting, or at prerouting with EarlyOn, are looked up
// first. Those for the node itself are not, and are never remembered: other policies apply
// to them.
const (
	rememberedChain = "remembered" // looks packets up before they are queued
	rememberChain   = "remember"   // for packets that were accepted to be remembered
	staleChain      = "stale"      // for packets whose family has a stale address

	allowedSet = "allowed"
	deniedSet  = "denied"

	// allowedSize and deniedSize bound the memory of the kernel: an element takes some
	// 130 bytes. What does not fit is asked about.
	allowedSize = 1 << 16
	deniedSize  = 1 << 14
)

const (
	// DefaultRememberMark is the default of Config.RememberMark.
	DefaultRememberMark uint32 = 0x800
	// DefaultRememberFor is the default of Config.RememberFor.
	DefaultRememberFor = 30 * time.Second
)

// remembers reports whether there are sets of verdicts.
func (c Config) remembers() bool { return c.RememberMark != 0 }

// askChain returns the chain for packets that the agent decides unless the verdict is
// remembered.
func (c Config) askChain() string {
	if c.remembers() {
		return rememberedChain
	}
	return c.decideChain()
}

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

// object returns the set. Its elements have a timeout of their own.
func (v verdictSet) object() *knftables.Set {
	set := &knftables.Set{Name: v.name, Type: "ipv4_addr . ipv4_addr . inet_proto . inet_service"}
	if v.ipv6 {
		set.Type = "ipv6_addr . ipv6_addr . inet_proto . inet_service"
	}
	// Without the flag dynamic nft refuses elements that count.
	set.Flags, set.Size = []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag}, knftables.PtrTo(uint64(allowedSize))
	if v.denied {
		set.Size = knftables.PtrTo(uint64(deniedSize))
	}
	return set
}

// verdictSetNames returns the names of the sets that the chains in all use for
// remembered verdicts.
func verdictSetNames(all []chain) []string {
	if !slices.ContainsFunc(all, func(c chain) bool { return c.name == rememberedChain }) {
		return nil
	}
	var names []string
	for _, set := range verdictSets {
		names = append(names, set.name)
	}
	return names
}

// rememberChains come after the chains that queue.
func rememberChains(cfg Config) []chain {
	if !cfg.remembers() {
		return nil
	}
	return []chain{
		{name: staleChain, rules: staleRules(cfg)},
		{name: rememberedChain, rules: rememberedRules(cfg)},
		{name: rememberChain, rules: rememberRules(cfg)},
	}
}

// class are the expressions that have the class of a packet of this family. The protocol is
// that of the IP header: a packet with extension headers has another one there, and no
// element has it.
func (f family) class() string {
	next := "protocol"
	if f.ipv6 {
		next = "nexthdr"
	}
	return fmt.Sprintf("%s saddr . %[1]s daddr . %[1]s %s . th dport", f.ip, next)
}

// plain matches packets of TCP and UDP without extension headers.
func (f family) plain() string {
	if f.ipv6 {
		return "ip6 nexthdr { tcp, udp }"
	}
	return "ip protocol { tcp, udp }"
}

// rememberedRules decide a packet as another one of its class was decided.
func rememberedRules(cfg Config) []string {
	rules := []string{fmt.Sprintf("meta nfproto @%s jump %s", staleFamiliesSet, staleChain)}
	for _, f := range families {
		rules = append(rules,
			fmt.Sprintf("%s %s drop", f.class(), f.set(deniedSet)),
			// As keepRules. Invalid packets, for example, have no connection: the rule
			// ends early, and the agent decides them.
			fmt.Sprintf("%s %s ct mark set ct mark | %#x accept", f.class(), f.set(allowedSet), cfg.Mark))
	}
	return append(rules, "goto "+cfg.decideChain())
}

// staleRules queue packets of an address that has changed: a connection of it must not be
// accepted again before its old connections are removed.
func staleRules(cfg Config) []string {
	var rules []string
	for _, f := range families {
		rules = append(rules,
			fmt.Sprintf("%s saddr %s goto %s", f.ip, f.set(staleSet), cfg.decideChain()),
			fmt.Sprintf("%s daddr %s goto %s", f.ip, f.set(staleSet), cfg.decideChain()))
	}
	return rules
}

// rememberRules add the class of a packet. If a set is full, or there is no memory, the
// rule ends. An element counts the packet that adds it, and no further one of those that
// had to be decided by the agent: so the class is looked up before.
func rememberRules(cfg Config) []string {
	var rules []string
	for _, f := range families {
		// Not update: the timeout bounds how long a class is allowed without the agent. Of
		// two words with one space between them, knftables.Fake takes the second one for
		// a flowtable.
		rules = append(rules, fmt.Sprintf("%s %s != %s add  %[3]s { %[2]s timeout %[4]ds counter }",
			f.plain(), f.class(), f.set(allowedSet), cfg.RememberFor/time.Second))
	}
	return rules
}

// acceptedRules remember the verdict on a packet if the agent has asked for it, and keep
// its mark.
func acceptedRules(cfg Config) []string {
	rules := []string{unmarkedRule(cfg)}
	if cfg.remembers() {
		rules = append(rules, fmt.Sprintf("meta mark & %#x != 0 jump %s", cfg.RememberMark, rememberChain))
	}
	return append(rules, "goto "+keepChain)
}

// validateRemember returns an error that names every invalid field about remembered
// verdicts.
func (c Config) validateRemember() error {
	if !c.remembers() {
		return nil
	}
	err := CheckMark(c.RememberMark)
	if c.RememberMark == c.Mark {
		err = errors.New("is the same bit as Mark")
	}
	if err != nil {
		err = fmt.Errorf("RememberMark %#x %w", c.RememberMark, err)
	}
	if c.RememberFor < time.Second || c.RememberFor%time.Second != 0 {
		err = errors.Join(err, fmt.Errorf("RememberFor %v is not a positive number of whole seconds", c.RememberFor))
	}
	return err
}
