package steer

import (
	"slices"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// Part is an optional part of the table that a module of the agent uses.
type Part interface {
	// part describes the part.
	part() part
	// begin is called by New. It reports whether the kernel supports the part, which can then use s.
	begin(s *Steerer, caps Capabilities) bool
}

// part is an optional part of the table. It adds chains, sets that packets update, and rules at joints, and
// changes no rule of another part.
type part struct {
	in     func(Config) bool // nil for a Part
	chains func(Config) []chain
	sets   func() []*knftables.Set // nil if there are none
	rules  map[joint]func(Config) []rule.Rule
	// ask is the chain that selected packets pass before decideChain, where it sends them. Empty if
	// there is none.
	ask string
	// volatile sets are flushed when another process may have changed the table.
	volatile bool
}

// joint is a place in a chain at which parts add rules.
type joint string

const (
	beforeSettled  joint = "before settledRules of postrouting"
	afterPods      joint = "after the rules of selectChain for addresses of pods"
	afterSelection joint = "at the end of selectChain"
	afterToHost    joint = "at the end of toHostChain"
	beforeAnswers  joint = "at the end of answerSelectChain"
	afterVerdict   joint = "in the chains after the queues, for packets that the agent has accepted"
)

// parts returns the parts of the table.
func (c Config) parts() []part {
	all := slices.DeleteFunc([]part{
		{in: func(c Config) bool { return c.answers }, chains: answerChains, sets: answerSets,
			rules: map[joint]func(Config) []rule.Rule{beforeSettled: acceptAnswersRules}},
		{in: Config.shares, chains: shareChains, sets: shareSets},
		{in: Config.audits, chains: auditChains,
			rules: map[joint]func(Config) []rule.Rule{afterSelection: auditSelectRules, afterToHost: auditInputRules}},
		{in: func(c Config) bool { return c.SourceCheck }, chains: checkChains,
			rules: map[joint]func(Config) []rule.Rule{afterPods: Config.podLinkRules}},
		{in: func(c Config) bool { return c.EarlyUDP == EarlyOn }, chains: earlyChains},
		{in: func(c Config) bool { return c.ObserveQueue != 0 }, chains: observeChains},
	}, func(p part) bool { return !p.in(c) })
	for _, p := range c.Parts {
		all = append(all, p.part())
	}
	return all
}

// askChain returns the chain for packets that the agent decides unless a part does.
func (c Config) askChain() string {
	for _, p := range c.parts() {
		if p.ask != "" {
			return p.ask
		}
	}
	return c.decideChain()
}

// rulesAt returns the rules of all parts at a joint.
func (c Config) rulesAt(at joint) []rule.Rule {
	var rules []rule.Rule
	for _, p := range c.parts() {
		if add := p.rules[at]; add != nil {
			rules = append(rules, add(c)...)
		}
	}
	return rules
}
