package steer

import (
	"slices"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// part is an optional part of the table. It adds chains, sets that packets update, and rules at joints, and
// changes no rule of another part.
type part struct {
	in     func(Config) bool
	chains func(Config) []chain
	sets   func() []*knftables.Set // nil if there are none
	rules  map[joint]func(Config) []rule.Rule
}

// joint is a place in a chain at which parts add rules.
type joint string

const (
	beforeSettled  joint = "before settledRules of postrouting"
	afterPods      joint = "after the rules of selectChain for addresses of pods"
	afterSelection joint = "at the end of selectChain"
	afterToHost    joint = "at the end of toHostChain"
)

var parts = []part{
	{in: func(c Config) bool { return c.BlockMark != 0 }, chains: overrideChains, sets: overrideSets},
	{in: func(c Config) bool { return c.answers }, chains: answerChains, sets: answerSets,
		rules: map[joint]func(Config) []rule.Rule{beforeSettled: acceptAnswersRules}},
	{in: Config.shares, chains: shareChains, sets: shareSets},
	{in: Config.remembers, chains: rememberChains, sets: verdictObjects},
	{in: Config.audits, chains: auditChains,
		rules: map[joint]func(Config) []rule.Rule{afterSelection: auditSelectRules, afterToHost: auditInputRules}},
	{in: func(c Config) bool { return c.SourceCheck }, chains: checkChains,
		rules: map[joint]func(Config) []rule.Rule{afterPods: Config.podLinkRules}},
	{in: func(c Config) bool { return c.EarlyUDP == EarlyOn }, chains: earlyChains},
	{in: func(c Config) bool { return c.ObserveQueue != 0 }, chains: observeChains},
}

// parts returns the parts of the table.
func (c Config) parts() []part {
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !p.in(c) })
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
