package steer

import (
	"fmt"

	"sigs.k8s.io/knftables"
)

// Names of the table and of what is in it. Whatever changes its meaning in an
// incompatible way must change its name: a table with other names in it is
// another layout and is replaced whole.
const (
	TableName = "kube-network-policies" // of family inet

	judgeChain    = "postrouting"
	acceptedChain = "accepted"
	selectChain   = "select"
	exemptChain   = "exempt"
	divertChain   = "divert"

	steeredCounter = "steered"
)

const (
	// judgePriority puts us behind DNAT, so that a Service is already the pod
	// behind it, and before SNAT, so that the client is still the client.
	judgePriority = knftables.SNATPriority + "-5"
	// acceptedPriority is the next one: a packet that the agent accepts goes on
	// with the chain behind the one that queued it.
	acceptedPriority = knftables.SNATPriority + "-4"
)

// setSpec is a set of one family. Each set exists twice, see setSpecs.
type setSpec struct {
	name   string
	ipv6   bool
	ranges bool // holds prefixes; else single addresses
}

var setSpecs = func() []setSpec {
	var specs []setSpec
	for _, s := range []setSpec{
		{name: ingressSet}, {name: egressSet}, {name: podsSet},
		{name: ingressRangesSet, ranges: true}, {name: egressRangesSet, ranges: true},
	} {
		for _, ipv6 := range []bool{false, true} {
			specs = append(specs, setSpec{name: familyName(s.name, ipv6), ipv6: ipv6, ranges: s.ranges})
		}
	}
	return specs
}()

const (
	ingressSet       = "ingress"
	egressSet        = "egress"
	podsSet          = "pods"
	ingressRangesSet = "ingress-ranges"
	egressRangesSet  = "egress-ranges"
)

func familyName(set string, ipv6 bool) string {
	if ipv6 {
		return set + "-v6"
	}
	return set + "-v4"
}

func (s setSpec) object() *knftables.Set {
	set := &knftables.Set{Name: s.name, Type: "ipv4_addr"}
	if s.ipv6 {
		set.Type = "ipv6_addr"
	}
	if s.ranges {
		set.Flags = []knftables.SetFlag{knftables.IntervalFlag}
	}
	return set
}

// chains lists ours, referred ones before those that refer to them.
func chains() []*knftables.Chain {
	base := func(name string, priority knftables.BaseChainPriority) *knftables.Chain {
		return &knftables.Chain{
			Name:     name,
			Type:     knftables.PtrTo(knftables.FilterType),
			Hook:     knftables.PtrTo(knftables.PostroutingHook),
			Priority: knftables.PtrTo(priority),
		}
	}
	return []*knftables.Chain{
		{Name: divertChain},
		{Name: exemptChain},
		{Name: selectChain},
		base(judgeChain, judgePriority),
		base(acceptedChain, acceptedPriority),
	}
}

// chainRules are the rules of one chain, in order.
type chainRules struct {
	chain string
	rules []string
}

// rulesFor lists the rules of every chain but the divert chain.
func rulesFor(cfg Config) []chainRules {
	return []chainRules{
		{exemptChain, exemptRules()},
		{selectChain, selectRules()},
		{judgeChain, judgeRules(cfg)},
		{acceptedChain, acceptedRules(cfg)},
	}
}

// judgeRules let pass what is never judged. What is left goes to selectChain.
func judgeRules(cfg Config) []string {
	// Whoever set our bit before us, it was not the agent.
	rules := []string{clearMark(cfg)}
	if cfg.CutMark != 0 {
		// Ahead of all that lets a connection go on, and for both directions.
		rules = append(rules, fmt.Sprintf("ct mark & %#x != 0 drop", cfg.CutMark))
	}
	if cfg.SCTPPerPacket {
		// Another association to another port shares the conntrack entry, its
		// state and its mark.
		rules = append(rules, "meta l4proto sctp ct direction original goto "+selectChain)
	}
	return append(rules,
		// Not invalid ones: those are judged like a first packet.
		"ct state established,related accept",
		// One-way UDP stays new for ever.
		fmt.Sprintf("ct mark & %#x != 0 accept", cfg.Mark),
		// A router lowers the hop limit, so that what has 255 was not forwarded;
		// forged discovery carries nothing out of a pod that way.
		"ip6 hoplimit 255 icmpv6 type 133-137 accept",
		// Multicast listener discovery comes from such sources only, and no
		// router forwards them.
		"ip6 saddr { ::, fe80::/10 } icmpv6 type { 130-132, 143 } accept",
		"goto "+selectChain,
	)
}

// selectRules send to exemptChain what a selected pod, or a pod too new to be
// known, sends or receives.
func selectRules() []string {
	var rules []string
	for _, f := range []struct {
		ip   string
		ipv6 bool
	}{{"ip", false}, {"ip6", true}} {
		set := func(name string) string { return "@" + familyName(name, f.ipv6) }
		rules = append(rules,
			fmt.Sprintf("%s daddr %s goto %s", f.ip, set(ingressSet), exemptChain),
			fmt.Sprintf("%s saddr %s goto %s", f.ip, set(egressSet), exemptChain),
			fmt.Sprintf("%s daddr %s %s daddr != %s goto %s", f.ip, set(ingressRangesSet), f.ip, set(podsSet), exemptChain),
			fmt.Sprintf("%s saddr %s %s saddr != %s goto %s", f.ip, set(egressRangesSet), f.ip, set(podsSet), exemptChain),
		)
	}
	return rules
}

// exemptRules let the pod's own node talk to it, kubelet's probes above all, and
// send the rest to divertChain.
func exemptRules() []string {
	return []string{
		// What came in through an interface was not sent by this node, though a
		// pod may have forged its address: the kernel refuses its own IPv4
		// addresses from outside, but not its IPv6 ones. Kernels before 5.7 know
		// no input interface here, and then this rule matches nothing.
		"iif != 0 goto " + divertChain,
		// Told by the address, not by the user or by the missing interface:
		// probes do not all run as root, and IPVS sends other clients' packets
		// from here too.
		"fib saddr type local accept",
		"goto " + divertChain,
	}
}

// divertRules are those of DivertQueue; writeXTablesDivert has the others.
func divertRules(cfg Config) []string {
	return []string{
		fmt.Sprintf("counter name %s queue %sto %s", steeredCounter, queueFlags(cfg), queueNumbers(cfg)),
		"drop", // never reached while the line above is whole
	}
}

func queueFlags(cfg Config) string {
	switch fanout := cfg.Queues > 1; {
	case fanout && cfg.Bypass:
		return "flags bypass,fanout "
	case fanout:
		return "flags fanout "
	case cfg.Bypass:
		return "flags bypass "
	}
	return ""
}

func queueNumbers(cfg Config) string {
	if cfg.Queues == 1 {
		return fmt.Sprint(cfg.Queue)
	}
	return fmt.Sprintf("%d-%d", cfg.Queue, cfg.Queue+cfg.Queues-1)
}

// acceptedRules keep the agent's word: from the packet, where a verdict can put
// it, into the connection. Two rules, because the first ends early for a packet
// that belongs to no connection.
func acceptedRules(cfg Config) []string {
	return []string{
		fmt.Sprintf("meta mark & %#x != 0 ct mark set ct mark | %#[1]x", cfg.Mark),
		clearMark(cfg),
	}
}

// clearMark takes our bit, and no other, off the packet.
func clearMark(cfg Config) string {
	return fmt.Sprintf("meta mark & %#x != 0 meta mark set meta mark & %#x", cfg.Mark, ^cfg.Mark)
}
