package steer

import (
	"slices"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// Denied packets of the pods in Sets.Answered are answered: TCP with a reset, anything else with an
// ICMP error. The kernel can answer at prerouting, forward and output, but not at postrouting, where
// packets are queued otherwise. So with such pods first packets are queued at forward and output, too.
// The agent accepts a denied packet with BlockMark instead of its own mark, and the next base chain
// answers it and drops it.
//
// The chains at postrouting and input do not change. They steer every packet that no agent has accepted
// by then, so a denied packet does not pass if there is no chain that answers it, as after another
// agent has replaced the table.
const (
	answerSelectChain  = "answer-select"  // answers remembered classes, before selectChain
	answerEarlyChain   = "answer-early"   // for denied packets that were queued at prerouting
	answerBlockedChain = "answer-blocked" // for packets of blocked connections
	answerChain        = "answer"         // for denied first packets
	answerSenderChain  = "answer-sender"  // answers within the limit of the sender
	refuseChain        = "refuse"         // answers without a limit

	answeredSet = "answered"
	answersSet  = "answers" // limits, by address

	// answersPerSecond is for each pod, and for each end of blocked connections.
	answersPerSecond = 100
)

var (
	// forward and output are before postrouting. All other software that filters there is earlier.
	forward = hookPoint{knftables.ForwardHook, knftables.SNATPriority, -5}
	// output is for packets that IPVS has translated.
	output = hookPoint{knftables.OutputHook, knftables.SNATPriority, -5}
)

// answerSpecs are the sets of a table that answers.
var answerSpecs = []setSpec{{name: familyName(answeredSet, false)}, {name: familyName(answeredSet, true), ipv6: true}}

// answerSets returns the sets of a table that answers, with those that packets update.
func answerSets() []*knftables.Set {
	var sets []*knftables.Set
	for i, f := range families {
		sets = append(sets, answerSpecs[i].object(), f.shareSet(familyName(answersSet, f.ipv6)))
	}
	return sets
}

// specs returns the sets of addresses and values of a table.
func (c Config) specs() []setSpec {
	if c.answers {
		return slices.Concat(setSpecs, answerSpecs)
	}
	return setSpecs
}

// fit returns c with an entry for exactly the sets of the table.
func (c contents) fit(specs []setSpec) contents {
	fitted := make(contents, len(specs))
	for _, spec := range specs {
		fitted[spec.name] = c[spec.name]
		if fitted[spec.name] == nil {
			fitted[spec.name] = elements{}
		}
	}
	return fitted
}

func answerChains(cfg Config) []chain {
	return []chain{
		{name: refuseChain, rules: refuseRules()},
		{name: answerSenderChain, rules: answerSenderRules()},
		{name: answerChain, rules: answerRules()},
		{name: answerBlockedChain, rules: answerBlockedRules()},
		{name: answerEarlyChain, rules: []rule.Rule{{noWayBack, rule.Drop}, {rule.Goto(answerChain)}}},
		{name: answerSelectChain, rules: answerSelectRules(cfg)},
		prerouting.base("-unanswerable", +3, []rule.Rule{clearMark(cfg), {rule.CTState.Any(rule.New), noWayBack, rule.MetaMark.Set(cfg.Mark)}}),
		forward.steer(answerableRules(cfg)...),
		forward.accepted(answeredRules(cfg)...),
		output.steer(slices.Concat(markAnswersRules(cfg), answerableRules(cfg, rule.Rule{fromOwnNode, rule.Accept}))...),
		output.accepted(answeredRules(cfg)...),
	}
}

// noWayBack matches packets whose answer would leave the node through another interface: their source
// may be forged.
var noWayBack = rule.FibInterface.Is(rule.Missing)

// refuseRules answer and drop a packet. The kernel never answers fragments, resets and ICMP errors, and
// limits the rate of ICMP errors to one address.
func refuseRules() []rule.Rule {
	return []rule.Rule{
		{fromMany, rule.Drop},
		{toMany, rule.Drop},
		{rule.L4Proto.Is(rule.TCP), rule.RejectWithReset},
		{rule.RejectWithICMP},
	}
}

var (
	fromMany = rule.FibSaddrType.OneOf(rule.Broadcast, rule.Multicast)
	toMany   = rule.FibDaddrType.OneOf(rule.Broadcast, rule.Multicast)
)

func answerSenderRules() []rule.Rule {
	return append(forFamilies(func(f family) rule.Rule { return f.answerWithin(f.Saddr) }), rule.Rule{rule.Drop})
}

// answerWithin answers a packet within the limit of its source or destination address. If the set is full or
// memory is short, the update fails.
func (f family) answerWithin(address rule.Field) rule.Rule {
	return rule.Rule{rule.Update{Set: f.set(answersSet), Key: rule.Key{address}, PerSecond: answersPerSecond, Burst: answersPerSecond},
		rule.Goto(refuseChain)}
}

// answerRules use the limit of the sender if it is a pod of the node, else that of the receiver, so that
// the sources of other machines do not fill the set.
func answerRules() []rule.Rule {
	var rules []rule.Rule
	for _, f := range families {
		rules = append(rules,
			rule.Rule{f.Saddr.In(f.set(podsSet)), rule.Goto(answerSenderChain)},
			rule.Rule{f.Daddr.In(f.set(podsSet))}.And(f.answerWithin(f.Daddr)...))
	}
	return append(rules, rule.Rule{rule.Drop})
}

// answerBlockedRules answer both ends of a blocked connection. They are before DNAT, so the packet need
// not have the address of the pod.
func answerBlockedRules() []rule.Rule {
	rules := append(reopenRules(), rule.Rule{noWayBack, rule.Drop})
	for _, f := range families {
		rules = append(rules, rule.Rule{f.OriginalSaddr.In(f.set(answeredSet)), rule.Goto(answerSenderChain)})
	}
	for _, f := range families {
		rules = append(rules, rule.Rule{f.ReplySaddr.In(f.set(answeredSet)), rule.Goto(answerSenderChain)})
	}
	return append(rules, rule.Rule{rule.Drop})
}

// answerSelectRules answer packets of denied classes, and select the rest like selectChain. The counter of
// a class counts each lookup that finds it, so there is no second one.
func answerSelectRules(cfg Config) []rule.Rule {
	rules := []rule.Rule{
		// Verdicts are not applied to these, see staleRules and lateChain.
		{ofStale, rule.Goto(selectChain)},
		lateTCP.And(rule.Goto(selectChain)),
	}
	return slices.Concat(rules, cfg.rulesAt(beforeAnswers), []rule.Rule{{rule.Goto(selectChain)}})
}

// answerableRules queue packets that may be answered. They leave the rest, and packets that match a rule
// in exempt, to the chains at postrouting.
func answerableRules(cfg Config, exempt ...rule.Rule) []rule.Rule {
	answered := rule.CTState.IsNot(rule.New)
	rules := append([]rule.Rule{
		// Marked by another program: at postrouting this would be an answer.
		{rule.MetaMark.Has(cfg.Mark), answered, rule.MetaMark.Clear(cfg.Mark)},
		{answered, rule.Accept},
		// Marked at prerouting-unanswerable, or by another program.
		{rule.MetaMark.Has(cfg.Mark), rule.MetaMark.Clear(cfg.Mark | cfg.BlockMark), rule.Accept},
		{rule.MetaMark.Has(cfg.BlockMark), rule.MetaMark.Clear(cfg.BlockMark)},
	}, exempt...)
	return append(rules, rule.Rule{rule.CTMark.Has(cfg.Mark), rule.Jump(oneWayChain)}, rule.Rule{rule.Goto(answerSelectChain)})
}

// answeredRules answer what the agent has denied, and store its other verdicts.
func answeredRules(cfg Config) []rule.Rule {
	return append([]rule.Rule{{rule.CTState.IsNot(rule.New), rule.Accept}, cfg.ifDenied(answerChain)}, acceptedRules(cfg)...)
}

// ifDenied returns the rule that sends packets to chain if the agent has denied them.
func (c Config) ifDenied(chain string) rule.Rule {
	return rule.Rule{rule.MetaMark.HasOnly(c.Mark|c.BlockMark, c.BlockMark), rule.Goto(chain)}
}

// earlyRules select packets at prerouting.
func earlyRules(cfg Config) []rule.Rule {
	selected := early.And(rule.FibDaddrType.IsNot(rule.Local))
	if !cfg.answers {
		return []rule.Rule{selected.And(rule.Goto(selectChain))}
	}
	return []rule.Rule{selected.And(noWayBack, rule.Goto(selectChain)), selected.And(rule.Goto(answerSelectChain))}
}

// earlyAcceptedRules are answeredRules for packets that were queued at prerouting.
func earlyAcceptedRules(cfg Config) []rule.Rule {
	if !cfg.answers {
		return acceptedRules(cfg)
	}
	return append([]rule.Rule{cfg.ifDenied(answerEarlyChain)}, acceptedRules(cfg)...)
}

// answers match the packets by which the kernel answers. They are related to the connection that they are
// about, which is not accepted or even blocked, so that the rules for other packets would drop them at
// postrouting.
var answers = []rule.Rule{
	{rule.TCPFlags.MaskIsNot(rule.Flags(rule.RST), rule.Flags(0)), related},
	{anyICMP, related, fromOwnNode},
}

func markAnswersRules(cfg Config) []rule.Rule {
	var rules []rule.Rule
	for _, answer := range answers {
		rules = append(rules, answer.And(rule.MetaMark.Set(cfg.Mark), rule.Accept))
	}
	return rules
}

// acceptAnswersRules accept the packets that markAnswersRules have marked. What another program marks
// later has an input interface, unless a bridge forwards it: then it is a reset or has an address of the
// node.
func acceptAnswersRules(cfg Config) []rule.Rule {
	var rules []rule.Rule
	for _, answer := range answers {
		rules = append(rules, slices.Concat(rule.Rule{rule.MetaMark.Has(cfg.Mark), rule.IIF.Is(rule.Number(0))}, answer,
			rule.Rule{rule.MetaMark.Clear(cfg.Mark), rule.Accept}))
	}
	return rules
}

// blockedRules drop or answer packets of blocked connections at prerouting.
func blockedRules(cfg Config) []rule.Rule {
	chain := believeChain
	if cfg.answers {
		chain = answerBlockedChain
	}
	return []rule.Rule{unmarkRule(cfg), {rule.CTMark.Has(cfg.BlockMark), rule.Jump(chain)}}
}
