package steer

import (
	"fmt"
	"time"

	"sigs.k8s.io/knftables"
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
const unconfirmed = "ct status & confirmed == 0"

// unmarkRule clears our bits in connections whose first packet has just been tracked: nothing can have
// decided it.
func unmarkRule(cfg Config) string {
	ours := cfg.Mark | cfg.BlockMark
	return fmt.Sprintf("%s meta l4proto != { icmp, icmpv6 } ct mark & %#x != 0 counter name %s ct mark set ct mark & %#x",
		unconfirmed, ours, copiedMarksCounter, ^ours)
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

// ends returns the expression for the addresses and ports of a packet of this family. Protocols without
// ports have something else in their place.
func (f family) ends() string {
	return fmt.Sprintf("%s saddr . %[1]s daddr . meta l4proto . th sport . th dport", f.ip)
}

// endsOfReply returns ends of the packet that the packet answers.
func (f family) endsOfReply() string {
	return fmt.Sprintf("%s daddr . %[1]s saddr . meta l4proto . th dport . th sport", f.ip)
}

// record returns the statement that adds a packet's connection to a set or extends its time.
func (f family) record(set string, timeout time.Duration) string {
	return fmt.Sprintf("update %s { %s timeout %ds }", f.set(set), f.ends(), timeout/time.Second)
}

// oneWayChains are the chains of one-way connections.
func oneWayChains(cfg Config) []chain {
	var record, pass []string
	if !cfg.answers && cfg.EarlyUDP != EarlyOn {
		// Only with these does a first packet come here after its verdict.
		pass = append(pass, fmt.Sprintf("%s counter name %s return", unconfirmed, copiedMarksCounter))
	}
	if cfg.SCTPPerPacket {
		pass = append(pass, "meta l4proto sctp return") // see currentRules
	}
	for _, f := range families {
		record = append(record, f.record(oneWaySet, oneWayFor))
		pass = append(pass, fmt.Sprintf("%s %s %s accept", f.ends(), f.set(oneWaySet), f.record(oneWaySet, oneWayFor)))
	}
	return []chain{
		{name: recordChain, rules: record},
		{name: oneWayChain, rules: pass},
		{
			name:     unmarkChain,
			hook:     knftables.OutputHook,
			priority: blockedPriority,
			rules:    []string{unmarkRule(cfg)},
		},
	}
}
