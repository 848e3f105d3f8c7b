package steer

import "fmt"

// Late packets are tracked packets that do not open the connection that the kernel has begun to
// track with them: their connection was open already, and the kernel does not know which end has
// opened it. The direction of such a packet says nothing. So it is steered if policies select
// either end in either direction, and the agent evaluates it in both. It gets the agent's bit of
// the packet mark, as no other first packet has. What is remembered neither decides it nor learns
// from it: a class has one direction.
//
// Segments that the kernel takes for invalid are not late here: they make no connection known.
const (
	lateChain       = "late"        // selects
	lateExemptChain = "late-exempt" // as exemptChain
	lateAskChain    = "late-ask"    // marks and queues
	decideChain     = "decide"      // queues, and tells late packets of SCTP apart
)

const (
	// lateTCP matches segments without a plain SYN, see packet.StageOf. The flags are SYN, RST
	// and ACK.
	lateTCP = "tcp flags & 0x16 != 0x02 ct state new,related"
	// newSCTP matches late packets and those that open an association: the agent reads the
	// chunk.
	newSCTP = "meta l4proto sctp ct state new,related"
)

// decideChain returns the chain for packets that the agent decides.
func (c Config) decideChain() string {
	if c.SCTPPerPacket {
		// SCTP is tracked by addresses: its packets are new or not, whatever they open.
		return c.queueChain()
	}
	return decideChain
}

// lateChains come after the chains that queue.
func lateChains(cfg Config) []chain {
	all := []chain{
		{name: lateAskChain, rules: []string{fmt.Sprintf("meta mark set meta mark | %#x goto %s", cfg.Mark, cfg.queueChain())}},
		{name: lateExemptChain, rules: ownNodeRules(lateAskChain)},
		{name: lateChain, rules: lateRules()},
	}
	if !cfg.SCTPPerPacket {
		all = append(all, chain{name: decideChain, rules: []string{newSCTP + " goto " + lateAskChain, "goto " + cfg.queueChain()}})
	}
	return all
}

// lateRules select as selectRules does, with each address in the sets of both directions.
func lateRules() []string {
	var rules, ranges []string
	for _, f := range families {
		for _, set := range []string{ingressSet, egressSet} {
			rules = append(rules,
				fmt.Sprintf("%s saddr %s goto %s", f.ip, f.set(set), lateAskChain),
				fmt.Sprintf("%s daddr %s goto %s", f.ip, f.set(set), lateExemptChain))
		}
		for _, set := range []string{ingressRangesSet, egressRangesSet} {
			for _, end := range []string{"saddr", "daddr"} {
				ranges = append(ranges, fmt.Sprintf("%s %s %s %[1]s %[2]s != %[4]s goto %s", f.ip, end, f.set(set), f.set(podsSet), lateExemptChain))
			}
		}
	}
	return append(rules, ranges...)
}
