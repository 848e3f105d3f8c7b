package steer

import "sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"

// Late packets are the first packets that the kernel tracks of connections that were already open:
// the kernel does not know which end opened the connection, so the direction of such a packet says
// nothing. A late packet is steered if policies select either end in either direction, and the
// agent evaluates it in both. It gets the agent's bit of the packet mark, which no other queued
// packet has. Remembered verdicts do not apply to it and its verdict is not remembered, because a
// class has one direction.
//
// If no agent listens and the queue has the flag bypass, the bit marks the connection as accepted.
// The next agent evaluates it.
//
// Segments that the kernel regards as invalid are not late, because it does not track them.
const (
	lateChain       = "late"        // selects
	lateExemptChain = "late-exempt" // like exemptChain
	lateAskChain    = "late-ask"    // marks and queues
	decideChain     = "decide"      // queues, and treats SCTP packets that may be late as late
)

var (
	// lateTCP matches first segments that are not a plain SYN, see packet.StageOf. Established ones get to the chains that decide if they may be of a predecessor.
	lateTCP = rule.Rule{rule.TCPFlags.MaskIsNot(rule.Flags(rule.SYN|rule.RST|rule.ACK), rule.Flags(rule.SYN)), mayBeLate}
	// newSCTP matches late packets and those that open an association. The agent reads the chunk
	// to distinguish them.
	newSCTP = rule.Rule{rule.L4Proto.Is(rule.SCTP), mayBeLate}

	mayBeLate = rule.CTState.Any(rule.Established, rule.Related, rule.New)
)

// decideChain returns the chain for packets that the agent decides.
func (c Config) decideChain() string {
	if c.SCTPPerPacket {
		// The kernel tracks SCTP by addresses, so whether a packet is new does not say whether it
		// opens an association.
		return c.queueChain()
	}
	return decideChain
}

// lateChains follow the chains that queue.
func lateChains(cfg Config) []chain {
	all := []chain{
		{name: lateAskChain, rules: []rule.Rule{{rule.MetaMark.Set(cfg.Mark), rule.Goto(cfg.queueChain())}}},
		{name: lateExemptChain, rules: ownNodeRules(lateAskChain)},
		{name: lateChain, rules: lateRules(cfg)},
	}
	if !cfg.SCTPPerPacket {
		all = append(all, chain{name: decideChain, rules: []rule.Rule{newSCTP.And(rule.Goto(lateAskChain)), {rule.Goto(cfg.queueChain())}}})
	}
	return all
}

// lateRules select like selectRules, but look up each address in the sets of both directions.
func lateRules(cfg Config) []rule.Rule {
	var rules, ranges []rule.Rule
	for _, f := range families {
		for _, set := range []string{ingressSet, egressSet} {
			rules = append(rules,
				rule.Rule{f.Saddr.In(f.set(set)), rule.Goto(lateAskChain)},
				rule.Rule{f.Daddr.In(f.set(set)), rule.Goto(lateExemptChain)})
		}
		for _, set := range []string{ingressRangesSet, egressRangesSet} {
			for _, end := range f.addresses() {
				ranges = append(ranges, rule.Rule{end.In(f.set(set)), end.NotIn(f.set(podsSet)), rule.Goto(lateExemptChain)})
			}
		}
	}
	if cfg.SourceCheck {
		ranges = append(ranges, latePodLinkRules()...)
	}
	return append(rules, ranges...)
}
