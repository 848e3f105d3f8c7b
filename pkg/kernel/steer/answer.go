package steer

import (
	"fmt"
	"slices"

	"sigs.k8s.io/knftables"
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

// answerSetNames returns the names of the sets of answers if the chains in all use them.
func answerSetNames(all []chain) []string {
	if !slices.ContainsFunc(all, func(c chain) bool { return c.name == refuseChain }) {
		return nil
	}
	var names []string
	for _, set := range answerSets() {
		names = append(names, set.Name)
	}
	return names
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

// answerChains follow selectChain.
func answerChains(cfg Config) []chain {
	if !cfg.answers {
		return nil
	}
	return []chain{
		{name: refuseChain, rules: refuseRules()},
		{name: answerSenderChain, rules: append(answersWithin("saddr"), "drop")},
		{name: answerChain, rules: answerRules()},
		{name: answerBlockedChain, rules: answerBlockedRules()},
		{name: answerEarlyChain, rules: []string{noWayBack + " drop", "goto " + answerChain}},
		{name: answerSelectChain, rules: answerSelectRules(cfg)},
		prerouting.base("-unanswerable", +3, []string{clearMark(cfg), fmt.Sprintf("ct state new %s meta mark set meta mark | %#x", noWayBack, cfg.Mark)}),
		forward.steer(answerableRules(cfg)...),
		forward.accepted(answeredRules(cfg)...),
		output.steer(slices.Concat(markAnswersRules(cfg), answerableRules(cfg, "fib saddr type local accept"))...),
		output.accepted(answeredRules(cfg)...),
	}
}

// noWayBack matches packets whose answer would leave the node through another interface: their source
// may be forged.
const noWayBack = "fib saddr . iif oif missing"

// refuseRules answer and drop a packet. The kernel never answers fragments, resets and ICMP errors, and
// limits the rate of ICMP errors to one address.
func refuseRules() []string {
	return []string{
		"fib saddr type { broadcast, multicast } drop",
		"fib daddr type { broadcast, multicast } drop",
		"meta l4proto tcp reject with tcp reset",
		"reject with icmpx type admin-prohibited",
	}
}

// answersWithin returns a rule for each family that answers a packet within the limit of its source or
// destination address. If the set is full or memory is short, the update fails.
func answersWithin(address string) []string {
	var rules []string
	for _, f := range families {
		rules = append(rules, fmt.Sprintf("update %s { %s %s limit rate %d/second burst %d packets } goto %s",
			f.set(answersSet), f.ip, address, answersPerSecond, answersPerSecond, refuseChain))
	}
	return rules
}

// answerRules use the limit of the sender if it is a pod of the node, else that of the receiver, so that
// the sources of other machines do not fill the set.
func answerRules() []string {
	var rules []string
	toPods := answersWithin("daddr")
	for i, f := range families {
		rules = append(rules,
			fmt.Sprintf("%s saddr %s goto %s", f.ip, f.set(podsSet), answerSenderChain),
			fmt.Sprintf("%s daddr %s %s", f.ip, f.set(podsSet), toPods[i]))
	}
	return append(rules, "drop")
}

// answerBlockedRules answer both ends of a blocked connection. They are before DNAT, so the packet need
// not have the address of the pod.
func answerBlockedRules() []string {
	rules := append(reopenRules(), noWayBack+" drop")
	for _, direction := range []string{"original", "reply"} {
		for _, f := range families {
			rules = append(rules, fmt.Sprintf("ct %s %s saddr %s goto %s", direction, f.ip, f.set(answeredSet), answerSenderChain))
		}
	}
	return append(rules, "drop")
}

// answerSelectRules answer packets of denied classes, and select the rest like selectChain. The counter of
// a class counts each lookup that finds it, so there is no second one.
func answerSelectRules(cfg Config) []string {
	rules := []string{
		// Verdicts are not applied to these, see staleRules and lateChain.
		fmt.Sprintf("meta nfproto @%s goto %s", staleFamiliesSet, selectChain),
		lateTCP + " goto " + selectChain,
	}
	if cfg.remembers() {
		for _, f := range families {
			for _, end := range []string{"saddr", "daddr"} {
				rules = append(rules, fmt.Sprintf("%s %s %s %s %s goto %s", f.ip, end, f.set(answeredSet), f.class(), f.set(deniedSet), answerChain))
			}
		}
	}
	return append(rules, "goto "+selectChain)
}

// answerableRules queue packets that may be answered. They leave the rest, and packets that match a rule
// in exempt, to the chains at postrouting.
func answerableRules(cfg Config, exempt ...string) []string {
	rules := append([]string{
		// Marked by another program: at postrouting this would be an answer.
		fmt.Sprintf("meta mark & %#x != 0 ct state != new meta mark set meta mark & %#x", cfg.Mark, ^cfg.Mark),
		"ct state != new accept",
		// Marked at prerouting-unanswerable, or by another program.
		fmt.Sprintf("meta mark & %#x != 0 meta mark set meta mark & %#x accept", cfg.Mark, ^(cfg.Mark | cfg.BlockMark)),
		fmt.Sprintf("meta mark & %#x != 0 meta mark set meta mark & %#x", cfg.BlockMark, ^cfg.BlockMark),
	}, exempt...)
	return append(rules, fmt.Sprintf("ct mark & %#x != 0 jump %s", cfg.Mark, oneWayChain), "goto "+answerSelectChain)
}

// answeredRules answer what the agent has denied, and store its other verdicts.
func answeredRules(cfg Config) []string {
	return append([]string{"ct state != new accept", cfg.ifDenied(answerChain)}, acceptedRules(cfg)...)
}

// ifDenied returns the rule that sends packets to chain if the agent has denied them.
func (c Config) ifDenied(chain string) string {
	return fmt.Sprintf("meta mark & %#x == %#x goto %s", c.Mark|c.BlockMark, c.BlockMark, chain)
}

// earlyRules select packets at prerouting.
func earlyRules(cfg Config) []string {
	const selected = early + " fib daddr type != local "
	if !cfg.answers {
		return []string{selected + "goto " + selectChain}
	}
	return []string{selected + noWayBack + " goto " + selectChain, selected + "goto " + answerSelectChain}
}

// earlyAcceptedRules are answeredRules for packets that were queued at prerouting.
func earlyAcceptedRules(cfg Config) []string {
	if !cfg.answers {
		return acceptedRules(cfg)
	}
	return append([]string{cfg.ifDenied(answerEarlyChain)}, acceptedRules(cfg)...)
}

// answers match the packets by which the kernel answers. They are related to the connection that they are
// about, which is not accepted or even blocked, so that the rules for other packets would drop them at
// postrouting.
var answers = []string{
	"tcp flags & 0x04 != 0x00 ct state related",
	"meta l4proto { icmp, icmpv6 } ct state related fib saddr type local",
}

func markAnswersRules(cfg Config) []string {
	var rules []string
	for _, answer := range answers {
		rules = append(rules, fmt.Sprintf("%s meta mark set meta mark | %#x accept", answer, cfg.Mark))
	}
	return rules
}

// acceptAnswersRules accept the packets that markAnswersRules have marked. What another program marks
// later has an input interface, unless a bridge forwards it: then it is a reset or has an address of the
// node.
func acceptAnswersRules(cfg Config) []string {
	if !cfg.answers {
		return nil
	}
	var rules []string
	for _, answer := range answers {
		rules = append(rules, fmt.Sprintf("meta mark & %#x != 0 iif 0 %s meta mark set meta mark & %#x accept", cfg.Mark, answer, ^cfg.Mark))
	}
	return rules
}

// blockedRules drop or answer packets of blocked connections at prerouting.
func blockedRules(cfg Config) []string {
	rules := []string{unmarkRule(cfg)}
	switch {
	case cfg.answers:
		return append(rules, fmt.Sprintf("ct mark & %#x != 0 jump %s", cfg.BlockMark, answerBlockedChain))
	case cfg.BlockMark != 0:
		return append(rules, blockedRule(cfg))
	}
	return rules
}
