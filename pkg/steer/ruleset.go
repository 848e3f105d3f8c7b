package steer

import (
	"fmt"
	"slices"

	"sigs.k8s.io/knftables"
)

// Names of the table and of what is in it. Whatever changes its meaning in an
// incompatible way must change its name: a table with other names in it is
// another layout and is replaced whole.
const (
	TableName = "kube-network-policies" // of family inet

	settledChain  = "settled"
	currentChain  = "current"
	selectChain   = "select"
	exemptChain   = "exempt"
	divertChain   = "divert"
	keepChain     = "keep"
	messagesChain = "messages"
	showChain     = "show"
	forgedChain   = "forged"

	steeredCounter = "steered"
)

// station is a hook at which packets are judged, by three base chains one behind
// the other. A packet that comes out of a queue goes on with the chain behind the
// one that queued it: what was observed is then judged as if it had not been, and
// what was judged meets the chain that keeps the agent's word.
type station struct {
	hook   knftables.BaseChainHook
	anchor knftables.BaseChainPriority
	offset int // of the judging chain from anchor
}

var (
	// postrouting is behind DNAT, so that a Service is already the pod behind it,
	// and before SNAT, so that the client is still the client.
	postrouting = station{knftables.PostroutingHook, knftables.SNATPriority, -5}
	// input is behind IPVS, which takes its packets away at srcnat-2 and srcnat-1:
	// what is still there is for this node itself. There is no room between it
	// and the SNAT of this hook, which is at srcnat.
	input = station{knftables.InputHook, knftables.SNATPriority, +5}
	// prerouting is behind DNAT and before routing.
	prerouting = station{knftables.PreroutingHook, knftables.DNATPriority, +5}
)

func (s station) observe(rules ...string) chain { return s.base("-observe", -1, rules) }
func (s station) judge(rules ...string) chain   { return s.base("", 0, rules) }
func (s station) accepted() chain               { return s.base("-accepted", +1, []string{"goto " + keepChain}) }

func (s station) base(suffix string, offset int, rules []string) chain {
	return chain{
		name:     string(s.hook) + suffix,
		hook:     s.hook,
		priority: knftables.BaseChainPriority(fmt.Sprintf("%s%+d", s.anchor, s.offset+offset)),
		rules:    rules,
	}
}

// early matches the packets that EarlyOn is about.
const early = "meta l4proto udp ct state new ct status dnat"

// setSpec is a set of one family. Each set exists twice, see setSpecs.
type setSpec struct {
	name   string
	ipv6   bool
	ranges bool   // holds prefixes; else single addresses
	with   string // the type of the number that comes with an address, empty without
	words  string // the type of a set that holds no addresses and has no family
}

var setSpecs = func() []setSpec {
	var specs []setSpec
	for _, s := range []setSpec{
		{name: ingressSet}, {name: egressSet}, {name: hostSet}, {name: podsSet},
		{name: ingressRangesSet, ranges: true}, {name: egressRangesSet, ranges: true},
		{name: namesSet}, {name: resolversSet, with: "inet_service"},
		{name: staleSet}, {name: ownersSet, with: "mark"},
	} {
		for _, f := range families {
			s := s
			s.name, s.ipv6 = familyName(s.name, f.ipv6), f.ipv6
			specs = append(specs, s)
		}
	}
	return append(specs, wordSpecs...)
}()

const (
	ingressSet       = "ingress"
	egressSet        = "egress"
	hostSet          = "host"
	podsSet          = "pods"
	ingressRangesSet = "ingress-ranges"
	egressRangesSet  = "egress-ranges"
	namesSet         = "names"
	resolversSet     = "resolvers"
	staleSet         = "stale"
	ownersSet        = "owners" // for the next agent; no rule reads it
)

func familyName(set string, ipv6 bool) string {
	if ipv6 {
		return set + "-v6"
	}
	return set + "-v4"
}

// family is one in the words of rules.
type family struct {
	ip   string
	ipv6 bool
}

var families = []family{{"ip", false}, {"ip6", true}}

// set names the set of this family.
func (f family) set(name string) string { return "@" + familyName(name, f.ipv6) }

func (s setSpec) object() *knftables.Set {
	set := &knftables.Set{Name: s.name, Type: "ipv4_addr"}
	switch {
	case s.words != "":
		set.Type = s.words
	case s.ipv6:
		set.Type = "ipv6_addr"
	}
	if s.with != "" {
		set.Type += " . " + s.with
	}
	if s.ranges {
		set.Flags = []knftables.SetFlag{knftables.IntervalFlag}
	}
	return set
}

// chain is one of ours, a base chain if it has a hook.
type chain struct {
	name     string
	hook     knftables.BaseChainHook
	priority knftables.BaseChainPriority
	rules    []string
}

func (c chain) object() *knftables.Chain {
	object := &knftables.Chain{Name: c.name}
	if c.hook != "" {
		object.Type = knftables.PtrTo(knftables.FilterType)
		object.Hook, object.Priority = &c.hook, &c.priority
	}
	return object
}

// chains lists ours, referred ones before those that refer to them. Those of
// divert and show are for DivertQueue; writeXTables has the others.
func chains(cfg Config) []chain {
	all := []chain{{name: divertChain, rules: divertRules(cfg)}}
	all = append(all, shareChains(cfg)...)
	all = append(all,
		chain{name: exemptChain, rules: exemptRules(cfg)},
		chain{name: selectChain, rules: selectRules()},
		chain{name: currentChain, rules: currentRules(cfg)},
		chain{name: settledChain, rules: settledRules(cfg)},
		chain{name: keepChain, rules: keepRules(cfg)},
		postrouting.judge("jump "+settledChain, "goto "+selectChain),
		postrouting.accepted(),
		input.judge(inputRules(cfg)...),
		input.accepted(),
	)
	if cfg.SourceCheck {
		all = append(all, sourceChains()...)
		all = append(all, tunnelChains()...)
	}
	if cfg.EarlyUDP == EarlyOn {
		// What is for this node itself, or for IPVS, waits for its own hook.
		all = append(all,
			prerouting.judge("jump "+settledChain, early+" fib daddr type != local goto "+selectChain),
			prerouting.accepted())
	}
	if cfg.ObserveQueue != 0 {
		all = append(all, observeChains(cfg)...)
	}
	return all
}

// observeChains show each message once.
func observeChains(cfg Config) []chain {
	all := []chain{
		{name: showChain, rules: showRules(cfg)},
		{name: messagesChain, rules: messagesRules(cfg)},
		{name: forgedChain, rules: forgedRules(cfg)},
		prerouting.base("-forged", +2, []string{"goto " + forgedChain}),
	}
	rules := []string{"goto " + messagesChain}
	if cfg.EarlyUDP == EarlyOn {
		// To wait in this queue loses packets as to wait in the others does.
		all = append(all, prerouting.observe(early+" jump "+forgedChain, early+" goto "+messagesChain))
		rules = slices.Insert(rules, 0, early+" accept")
	}
	return append(all, postrouting.observe(rules...), input.observe(rules...))
}

// settledRules let pass what is never judged, at any hook. What is left comes
// back.
func settledRules(cfg Config) []string {
	// Whoever set our bit before us, it was not the agent.
	rules := []string{clearMark(cfg)}
	if cfg.BlockMark != 0 {
		// Ahead of all that lets a connection go on, and for both directions.
		rules = append(rules, fmt.Sprintf("ct mark & %#x != 0 drop", cfg.BlockMark))
	}
	if cfg.SCTPPerPacket {
		// Another association to another port shares the conntrack entry, its
		// state and its mark.
		rules = append(rules, "meta l4proto sctp ct direction original return")
	}
	return append(rules,
		// Not invalid ones: those are judged like a first packet.
		"ct state established,related goto "+currentChain,
		// One-way UDP stays new for ever.
		fmt.Sprintf("ct mark & %#x != 0 goto %s", cfg.Mark, currentChain),
		// A router lowers the hop limit, so that what has 255 was not forwarded;
		// forged discovery carries nothing out of a pod that way.
		"ip6 hoplimit 255 icmpv6 type 133-137 accept",
		// Multicast listener discovery comes from such sources only, and no
		// router forwards them.
		"ip6 saddr { ::, fe80::/10 } icmpv6 type { 130-132, 143 } accept",
	)
}

// currentRules let a connection go on, unless it may be one of a pod that had the
// address before.
func currentRules(cfg Config) []string {
	var rules []string
	if cfg.SourceCheck {
		// Errors of pods may be about other pods' connections. Our mark says that
		// they are related to one.
		rules = append(rules, fmt.Sprintf("meta nfproto @%s oif != 0 iif != 0 iifname != @%s ct state related meta l4proto { icmp, icmpv6 } meta mark set meta mark | %#x return",
			checkedSet, uncheckedSet, cfg.Mark))
	}
	for _, f := range families {
		rules = append(rules,
			fmt.Sprintf("%s saddr %s return", f.ip, f.set(staleSet)),
			fmt.Sprintf("%s daddr %s return", f.ip, f.set(staleSet)))
	}
	return append(rules, "accept")
}

// inputRules have judged what some pods send to this node itself.
func inputRules(cfg Config) []string {
	rules := []string{"jump " + settledChain}
	for _, f := range families {
		rules = append(rules, fmt.Sprintf("%s saddr %s goto %s", f.ip, f.set(hostSet), cfg.judgedChain()))
	}
	return rules
}

// selectRules send to exemptChain what a selected pod, or a pod too new to be
// known, sends or receives. What an address sends or receives that is stale is all
// held until it is not: an answer could not be told from a first packet.
func selectRules() []string {
	var rules []string
	for _, f := range families {
		rules = append(rules,
			fmt.Sprintf("%s daddr %s goto %s", f.ip, f.set(staleSet), exemptChain),
			fmt.Sprintf("%s saddr %s goto %s", f.ip, f.set(staleSet), exemptChain),
			fmt.Sprintf("%s daddr %s goto %s", f.ip, f.set(ingressSet), exemptChain),
			fmt.Sprintf("%s saddr %s goto %s", f.ip, f.set(egressSet), exemptChain),
			fmt.Sprintf("%s daddr %s %s daddr != %s goto %s", f.ip, f.set(ingressRangesSet), f.ip, f.set(podsSet), exemptChain),
			fmt.Sprintf("%s saddr %s %s saddr != %s goto %s", f.ip, f.set(egressRangesSet), f.ip, f.set(podsSet), exemptChain),
		)
	}
	return rules
}

// exemptRules let the pod's own node talk to it, kubelet's probes above all, and
// have the rest judged.
func exemptRules(cfg Config) []string {
	return []string{
		// What came in through an interface was not sent by this node, though a
		// pod may have forged its address: the kernel refuses its own IPv4
		// addresses from outside, but not its IPv6 ones. Kernels before 5.7 know
		// no input interface here, and then this rule matches nothing.
		"iif != 0 goto " + cfg.judgedChain(),
		// Told by the address, not by the user or by the missing interface:
		// probes do not all run as root, and IPVS sends other clients' packets
		// from here too.
		"fib saddr type local accept",
		"goto " + cfg.judgedChain(),
	}
}

// divertRules count what goes to the agent.
func divertRules(cfg Config) []string {
	return []string{
		fmt.Sprintf("counter name %s queue %sto %s", steeredCounter, queueFlags(cfg), numbers{cfg.Queue, cfg.Queues}.numbers()),
		"drop", // never reached while the line above is whole
	}
}

// messagesRules send to showChain what the pods of names say to resolvers, and
// what those say to them.
func messagesRules(cfg Config) []string {
	var rules []string
	for _, f := range families {
		rules = append(rules,
			fmt.Sprintf("%s saddr %s meta l4proto { tcp, udp } %s daddr . th dport %s goto %s", f.ip, f.set(namesSet), f.ip, f.set(resolversSet), showChain),
			fmt.Sprintf("%s meta mark & %#x == 0 goto %s", f.answers(), cfg.Mark, showChain))
	}
	return rules
}

// forgedRules mark what has a resolver's address and came another way than that
// one's packets would: from a pod that answers in its stead. It is not shown. Nor
// is it dropped, because the ways of a network need not be the same in both
// directions. The mark is gone when the packet is judged, see settledRules.
func forgedRules(cfg Config) []string {
	rules := []string{clearMark(cfg)} // somebody else's says nothing here
	for _, f := range families {
		rules = append(rules, fmt.Sprintf("%s fib saddr . iif oif missing meta mark set meta mark | %#x", f.answers(), cfg.Mark))
	}
	return rules
}

// answers matches what resolvers say to the pods of names.
func (f family) answers() string {
	return fmt.Sprintf("%s daddr %s meta l4proto { tcp, udp } %s saddr . th sport %s", f.ip, f.set(namesSet), f.ip, f.set(resolversSet))
}

// showRules hand a packet to the observer. Without one, or without the rule, the
// packet goes on: it is judged all the same.
func showRules(cfg Config) []string {
	return []string{fmt.Sprintf("queue flags bypass to %d", cfg.ObserveQueue)}
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

// keepRules keep the agent's word: from the packet, where a verdict can put it,
// into the connection. Two rules, because the first ends early for a packet that
// belongs to no connection.
func keepRules(cfg Config) []string {
	return []string{
		fmt.Sprintf("meta mark & %#x != 0 ct state != related ct mark set ct mark | %#[1]x", cfg.Mark),
		clearMark(cfg),
	}
}

// clearMark takes our bit, and no other, off the packet.
func clearMark(cfg Config) string {
	return fmt.Sprintf("meta mark & %#x != 0 meta mark set meta mark & %#x", cfg.Mark, ^cfg.Mark)
}
