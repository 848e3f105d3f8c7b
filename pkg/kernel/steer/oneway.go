package steer

import (
	"time"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// A connection mark alone is no decision: connection tracking copies the mark of a connection to those
// that a helper expects, and other programs copy, restore and inject marks. Packets of connections
// that both ends have used are accepted by their state. For the rest, which is UDP that is never
// answered, retransmissions, and connections that a helper expects, there is a second record that only
// our rules write: the addresses and ports of connections of which the agent has accepted a packet.
const (
	oneWayChain = "one-way" // accepts packets of connections in the set
	recordChain = "record"  // adds a connection
	unmarkChain = "output-unmark"
	oneWaySet   = "one-way"

	// copiedMarksCounter counts first packets of connections with one of our bits that no verdict set.
	copiedMarksCounter = "copied-marks"

	// oneWayFor is below the time for which the kernel keeps UDP that is not answered. A packet that
	// comes later is decided like a first packet.
	oneWayFor = 20 * time.Second
	// oneWaySize is the default size of the connection table. The next packets of connections that do
	// not fit are decided like first packets.
	oneWaySize = 1 << 18
)

// unconfirmed matches the first packet of a connection, which is not in the connection table yet. The
// connection of an ICMP error is the one that it is about.
var unconfirmed = rule.CTStatus.MaskIs(rule.Confirmed, rule.Number(0))

// unmarkRule clears our bits in connections whose first packet has just been tracked: nothing can have
// decided it.
func unmarkRule(cfg Config) rule.Rule {
	ours := cfg.Mark | cfg.BlockMark
	return rule.Rule{unconfirmed, noICMP, rule.CTMark.Has(ours), rule.Counter(copiedMarksCounter), rule.CTMark.Clear(ours)}
}

// oneWaySets are the sets of one-way connections. Packets update their elements; the agent does not
// write them.
func oneWaySets() []*knftables.Set { return connectionSets(oneWaySet, oneWaySize) }

// connectionSets are sets of connections with a name for each family.
func connectionSets(name string, size uint64) []*knftables.Set {
	var sets []*knftables.Set
	for _, f := range families {
		addr := setSpec{ipv6: f.ipv6}.object().Type
		sets = append(sets, &knftables.Set{
			Name:  familyName(name, f.ipv6),
			Type:  addr + " . " + addr + " . inet_proto . inet_service . inet_service",
			Flags: []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag},
			Size:  knftables.PtrTo(size),
		})
	}
	return sets
}

// ends are the addresses and ports of a packet of this family. Protocols without ports have something else
// in their place.
func (f family) ends() rule.Key {
	return rule.Key{f.Saddr, f.Daddr, rule.L4Proto, rule.THSport, rule.THDport}
}

// endsOfReply are ends of the packet that the packet answers.
func (f family) endsOfReply() rule.Key {
	return rule.Key{f.Daddr, f.Saddr, rule.L4Proto, rule.THDport, rule.THSport}
}

// record adds a packet's connection to a set or extends its time.
func (f family) record(set string, timeout time.Duration) rule.Statement {
	return rule.Update{Set: f.set(set), Key: f.ends(), Seconds: uint32(timeout / time.Second)}
}

// oneWayChains are the chains of one-way connections.
func oneWayChains(cfg Config) []chain {
	var record, pass []rule.Rule
	if !cfg.answers && cfg.EarlyUDP != EarlyOn {
		// Only with these does a first packet come here after its verdict.
		pass = append(pass, rule.Rule{unconfirmed, rule.Counter(copiedMarksCounter), rule.Return})
	}
	if cfg.SCTPPerPacket {
		pass = append(pass, rule.Rule{rule.L4Proto.Is(rule.SCTP), rule.Return}) // see currentRules
	}
	for _, f := range families {
		record = append(record, rule.Rule{f.record(oneWaySet, oneWayFor)})
		pass = append(pass, rule.Rule{f.ends().In(f.set(oneWaySet)), f.record(oneWaySet, oneWayFor), rule.Accept})
	}
	return []chain{
		{name: recordChain, rules: record},
		{name: oneWayChain, rules: pass},
		{
			name:     unmarkChain,
			hook:     knftables.OutputHook,
			priority: blockedPriority,
			rules:    []rule.Rule{unmarkRule(cfg)},
		},
	}
}
