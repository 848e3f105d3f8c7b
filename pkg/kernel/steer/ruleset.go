package steer

import (
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queuenum"
)

// Names of the table and of its objects. An object whose meaning changes incompatibly must get a new
// name: tables with different names are incompatible.
const (
	TableName = "netpol-agent" // of family inet

	currentChain  = "current"
	selectChain   = "select"
	exemptChain   = "exempt"
	divertChain   = "divert"
	keepChain     = "keep"
	messagesChain = "messages"
	showChain     = "show"
	forgedChain   = "forged"
	blockedChain  = "prerouting-blocked"

	steeredCounter = "steered"
	// untrackedCounter counts queued packets that other software keeps from connection tracking
	// (NOTRACK): replies among them are decided like first packets.
	untrackedCounter = "untracked"
)

// hookPoint is a hook at which packets are queued, with three base chains in a row. A packet that
// leaves a queue continues with the base chain after the one that queued it. So a packet that the
// observer has seen is then steered like any other, and a packet that the agent has accepted
// continues with the chain that stores the mark of accepted packets.
type hookPoint struct {
	hook   knftables.BaseChainHook
	anchor knftables.BaseChainPriority
	offset int // of the steering chain's priority from anchor
}

var (
	// postrouting is after DNAT, so that the destination is the pod and not the Service, and
	// before SNAT, so that the source is still the client.
	postrouting = hookPoint{knftables.PostroutingHook, knftables.SNATPriority, -5}
	// input is after IPVS, which takes its packets at srcnat-2 and srcnat-1, so that the rest is
	// for the node itself. It is after the SNAT of this hook, too, because there is no room
	// between IPVS and srcnat.
	input = hookPoint{knftables.InputHook, knftables.SNATPriority, +5}
	// prerouting is after DNAT and before routing.
	prerouting = hookPoint{knftables.PreroutingHook, knftables.DNATPriority, +5}
)

func (p hookPoint) observe(rules ...rule.Rule) chain  { return p.base("-observe", -1, rules) }
func (p hookPoint) steer(rules ...rule.Rule) chain    { return p.base("", 0, rules) }
func (p hookPoint) accepted(rules ...rule.Rule) chain { return p.base("-accepted", +1, rules) }

func (p hookPoint) base(suffix string, offset int, rules []rule.Rule) chain {
	return chain{
		name:     string(p.hook) + suffix,
		hook:     p.hook,
		priority: knftables.BaseChainPriority(fmt.Sprintf("%s%+d", p.anchor, p.offset+offset)),
		rules:    rules,
	}
}

// early matches the packets that EarlyOn queues at prerouting. It matches all ports, because every
// client that sends two first packets at once loses one. It need not match packets for IPVS, which
// chooses the backend of a client with its first packet.
var early = rule.Rule{rule.L4Proto.Is(rule.UDP), rule.CTState.Any(rule.New), rule.CTStatus.Any(rule.DNAT)}

// chain is a base chain if it has a hook, otherwise a regular chain.
type chain struct {
	name     string
	hook     knftables.BaseChainHook
	priority knftables.BaseChainPriority
	rules    []rule.Rule
}

func (c chain) object() *knftables.Chain {
	object := &knftables.Chain{Name: c.name}
	if c.hook != "" {
		object.Type = knftables.PtrTo(knftables.FilterType)
		object.Hook, object.Priority = &c.hook, &c.priority
	}
	return object
}

// chains returns our chains: those that each table has, and those of its parts. With DivertXTables, queue
// statements are written as the NFQUEUE target.
func chains(cfg Config) []chain {
	all := []chain{{name: divertChain, rules: divertRules(cfg)}}
	all = append(all, renewChains()...)
	all = append(all, lateChains(cfg)...)
	all = append(all,
		chain{name: exemptChain, rules: exemptRules(cfg)},
		chain{name: selectChain, rules: append(selectRules(cfg), cfg.rulesAt(afterSelection)...)},
		chain{name: toHostChain, rules: toHostRules(cfg)},
		chain{name: currentChain, rules: currentRules(cfg)})
	all = append(all, predecessorChains()...)
	all = append(all, oneWayChains(cfg)...)
	all = append(all,
		chain{name: keepChain, rules: keepRules(cfg)},
		postrouting.steer(slices.Concat(cfg.rulesAt(beforeSettled), settledRules(cfg, predecessorChain, closedChain), []rule.Rule{{rule.Goto(selectChain)}})...),
		postrouting.accepted(acceptedRules(cfg)...),
		input.steer(append(settledRules(cfg, predecessorInputChain, inputChain), rule.Rule{rule.Goto(toHostChain)})...),
		input.accepted(unmarkedRule(cfg), rule.Rule{rule.Goto(keepChain)}),
		chain{
			name:     blockedChain,
			hook:     knftables.PreroutingHook,
			priority: blockedPriority,
			rules:    blockedRules(cfg),
		})
	all = append(all, overrideChains(cfg)...)
	for _, p := range cfg.parts() {
		all = append(all, p.chains(cfg)...)
	}
	return all
}

// earlyChains queue at prerouting. Packets for the node itself and for IPVS are queued at the other hooks.
func earlyChains(cfg Config) []chain {
	return []chain{
		prerouting.steer(append(settledRules(cfg, "", cutChain), earlyRules(cfg)...)...),
		prerouting.accepted(earlyAcceptedRules(cfg)...),
	}
}

// observeChains queue each DNS message to the observer once.
func observeChains(cfg Config) []chain {
	all := []chain{
		{name: showChain, rules: showRules(cfg)},
		{name: messagesChain, rules: messagesRules(cfg)},
		{name: forgedChain, rules: forgedRules(cfg)},
		prerouting.base("-forged", +2, []rule.Rule{{rule.Goto(forgedChain)}}),
	}
	rules := []rule.Rule{{rule.Goto(messagesChain)}}
	if cfg.EarlyUDP == EarlyOn {
		// Packets get lost in the observer's queue just as in the agent's, see EarlyUDP.
		all = append(all, prerouting.observe(early.And(rule.Jump(forgedChain)), early.And(rule.Goto(messagesChain))))
		rules = slices.Insert(rules, 0, early.And(rule.Accept))
	}
	return append(all, postrouting.observe(rules...), input.observe(rules...))
}

// settledRules begin the chains that queue. Most packets, those of established connections, end here.
// predecessors is the chain for those of stale addresses, "" where a later hook decides them, and
// overrides the one for those with overrides.
func settledRules(cfg Config, predecessors, overrides string) []rule.Rule {
	// If one of our bits is set here, another program set it.
	// The second rule precedes all that accept established connections, and is for both directions.
	rules := []rule.Rule{clearMark(cfg), blockedRule(cfg)}
	if predecessors != "" {
		rules = append(rules, rule.Rule{ofStale, rule.Jump(predecessors)})
	}
	return append(rules,
		rule.Rule{overridden, rule.Jump(overrides)},
		// Invalid packets do not match: they are queued like first packets.
		rule.Rule{rule.CTState.Any(rule.Established, rule.Related), rule.Jump(currentChain)},
		rule.Rule{rule.CTMark.Has(cfg.Mark), rule.Jump(oneWayChain)},
	)
}

// blockedPriority is just after connection tracking (-200), and before rules of other programs that
// overwrite connection marks, at mangle (-150) or later.
const blockedPriority = "-199"

// blockedRule drops packets of blocked connections. It is needed at prerouting, too: otherwise a rule
// of another program might clear the mark, and its flowtable at the forward hook might take the
// connection past all hooks.
func blockedRule(cfg Config) rule.Rule {
	return rule.Rule{rule.CTMark.Has(cfg.BlockMark), rule.Jump(believeChain)}
}

// linkRules accept IPv6 messages between neighbours. They precede all rules that queue IPv6 packets.
func linkRules() []rule.Rule {
	return []rule.Rule{
		// Routers decrement the hop limit, so a packet with 255 was not forwarded.
		// Forged discovery messages cannot carry data out of a pod.
		{notForwarded, rule.ICMPv6Type.Is(rule.Range(133, 137)), rule.Accept},
		acceptListeners,
	}
}

// notForwarded matches packets with the highest hop limit.
var notForwarded = rule.IPv6HopLimit.Is(rule.Number(255))

// acceptListeners accepts multicast listener discovery (RFC 3810), whose sources are never forwarded
// by routers.
var acceptListeners = rule.Rule{rule.IPv6.Saddr.OneOf(unspecified6, linkLocal6),
	rule.ICMPv6Type.OneOf(rule.Range(130, 132), rule.Number(143)), rule.Accept}

// Addresses of neighbours.
var (
	unspecified6 = prefix("::/128")
	linkLocal6   = prefix("fe80::/10")
)

func prefix(text string) rule.Value { return rule.Prefix(netip.MustParsePrefix(text)) }

// related matches ICMP errors and the packets that expected matches.
var related = rule.CTState.Any(rule.Related)

var (
	anyICMP = rule.L4Proto.OneOf(rule.ICMP, rule.ICMPv6)
	noICMP  = rule.L4Proto.NoneOf(rule.ICMP, rule.ICMPv6)
)

// expected matches the first packets of connections that a connection tracking helper has derived
// from another connection. Related ICMP errors do not open a connection.
var expected = rule.Rule{related, noICMP}

// currentRules accept packets of accepted connections.
func currentRules(cfg Config) []rule.Rule {
	var rules []rule.Rule
	if cfg.SCTPPerPacket {
		// An association to another port shares the conntrack entry, its state and
		// its mark.
		rules = append(rules, rule.Rule{rule.L4Proto.Is(rule.SCTP), original, rule.Return})
	}
	// This rule accepts almost every packet.
	rules = append(rules, rule.Rule{rule.CTState.IsNot(rule.Related), rule.Accept},
		// Connections that a helper expects must be accepted like any other: the ends of the
		// first connection choose their ports.
		expected.And(rule.Return))
	if cfg.SourceCheck {
		// ICMP errors from pods may be about other pods' connections. By our
		// mark the agent recognizes that they are related to a connection. Packets that a
		// bridge forwards have no input interface here.
		errors := rule.Rule{related, anyICMP, rule.OIF.IsNot(rule.Number(0))}
		mark := rule.Rule{rule.MetaMark.Set(cfg.Mark), rule.Return}
		rules = append(rules, slices.Concat(errors, rule.Rule{hasInput, ofChecked, rule.IIFName.NotIn(uncheckedSet)}, mark))
		for _, f := range families {
			rules = append(rules, slices.Concat(errors, rule.Rule{ofChecked, f.Saddr.In(f.set(podsSet))}, mark))
		}
	}
	return append(rules, rule.Rule{rule.Accept})
}

// hasInput matches packets that arrived on an interface, unless a bridge forwards them.
var hasInput = rule.IIF.IsNot(rule.Number(0))

// original and replying match the packets of one direction of a connection.
var (
	original = rule.CTDirection.Is(rule.Original)
	replying = rule.CTDirection.Is(rule.Reply)
)

// toHostRules queue packets to the node itself from the pods in hostSet, and from pods that may be too
// new to be known.
func toHostRules(cfg Config) []rule.Rule {
	rules := linkRules()
	for _, f := range families {
		rules = append(rules, rule.Rule{f.Saddr.In(f.set(hostSet)), rule.Goto(cfg.queueChain())})
	}
	for _, f := range families {
		// A bridge has an address in the range of the pods, from which the node sends to itself.
		rules = append(rules, rule.Rule{f.Saddr.In(f.set(hostRangesSet)), f.Saddr.NotIn(f.set(podsSet)), notFromOwnNode, rule.Goto(cfg.queueChain())})
	}
	return append(rules, cfg.rulesAt(afterToHost)...)
}

// selectRules select packets from and to selected pods, and from and to pods that may be too new to
// be known. Stale addresses are in the sets of both directions.
func selectRules(cfg Config) []rule.Rule {
	rules := []rule.Rule{lateTCP.And(rule.Jump(lateChain))}
	var ranges []rule.Rule
	for _, f := range families {
		if f.ipv6 {
			rules = append(rules, linkRules()...)
		}
		rules = append(rules,
			// A pod's address is not one of the node, so nothing is exempt.
			rule.Rule{f.Saddr.In(f.set(egressSet)), rule.Goto(cfg.askChain())},
			rule.Rule{f.Daddr.In(f.set(ingressSet)), rule.Goto(exemptChain)})
		ranges = append(ranges,
			rule.Rule{f.Daddr.In(f.set(ingressRangesSet)), f.Daddr.NotIn(f.set(podsSet)), rule.Goto(exemptChain)},
			rule.Rule{f.Saddr.In(f.set(egressRangesSet)), f.Saddr.NotIn(f.set(podsSet)), rule.Goto(exemptChain)})
	}
	rules = append(rules, ranges...)
	rules = append(rules, cfg.rulesAt(afterPods)...)
	if !cfg.SCTPPerPacket {
		// Other SCTP packets have gone to decideChain.
		rules = append(rules, newSCTP.And(rule.Jump(lateChain)))
	}
	return append(rules, dropLinkLocal)
}

// dropLinkLocal drops packets that leave the node with the link-local source of another machine. The
// kernel does not forward them, but IPVS does if they are for the address of a Service, and no policy
// could tell which pod sent them.
var dropLinkLocal = rule.Rule{rule.IPv6.Saddr.Is(linkLocal6), rule.IPv6.Daddr.IsNot(linkLocal6),
	rule.FibDaddrType.Is(rule.Unicast), notFromOwnNode, rule.Counter(forgedSourcesCounter), rule.Drop}

// fromOwnNode and notFromOwnNode match by whether the source is an address of the node.
var (
	fromOwnNode    = rule.FibSaddrType.Is(rule.Local)
	notFromOwnNode = rule.FibSaddrType.IsNot(rule.Local)
)

// exemptRules accept packets from the pod's own node, such as probes of the kubelet, and queue the
// rest.
func exemptRules(cfg Config) []rule.Rule { return ownNodeRules(cfg.askChain()) }

// ownNodeRules send packets to chain unless the pod's own node sent them.
func ownNodeRules(chain string) []rule.Rule {
	return []rule.Rule{
		// A packet that arrived on an interface was not sent by the node, even if it has an
		// address of the node: the kernel refuses its own IPv4 addresses as sources from
		// outside, but not its IPv6 addresses. On kernels before 5.7, and for packets that a
		// bridge forwards, there is no input interface here, so the rule does not match.
		{hasInput, rule.Goto(chain)},
		// The user and the missing input interface are no criteria: not all probes run as root,
		// and IPVS sends packets of other clients from here, too.
		{fromOwnNode, ofStale, rule.Jump(renewChain)},
		{fromOwnNode, rule.Accept},
		{rule.Goto(chain)},
	}
}

// divertRules count packets and send them to the agent's queues.
func divertRules(cfg Config) []rule.Rule { return cfg.queueRules(cfg.deciding()) }

func (c Config) queueRules(queues queuenum.Range) []rule.Rule {
	return []rule.Rule{
		{rule.CTState.Any(rule.Untracked), rule.Counter(untrackedCounter)},
		{rule.Counter(steeredCounter), rule.Queue{First: queues.First, Count: queues.Count, Bypass: c.Bypass}},
		{rule.Drop}, // not reached while the rule above is complete
	}
}

// messagesRules send queries from the pods in namesSet to resolvers, and the answers, to showChain.
func messagesRules(cfg Config) []rule.Rule {
	var rules []rule.Rule
	for _, f := range families {
		rules = append(rules,
			rule.Rule{f.Saddr.In(f.set(namesSet)), withPorts, rule.Key{f.Daddr, rule.THDport}.In(f.set(resolversSet)), rule.Goto(showChain)},
			f.answers().And(rule.MetaMark.HasNone(cfg.Mark), rule.Goto(showChain)))
	}
	return rules
}

// forgedRules mark packets with a resolver's address that did not arrive on the interface of the
// route to the resolver, for example from a pod that forges answers. messagesRules do not show them
// to the observer. They are not dropped, because routes need not be symmetric. settledRules clear the
// mark before the packet can be queued again.
func forgedRules(cfg Config) []rule.Rule {
	rules := []rule.Rule{clearMark(cfg)} // if another program set it
	for _, f := range families {
		rules = append(rules, f.answers().And(noWayBack, rule.MetaMark.Set(cfg.Mark)))
	}
	return rules
}

// answers matches packets from resolvers to the pods in namesSet.
func (f family) answers() rule.Rule {
	return rule.Rule{f.Daddr.In(f.set(namesSet)), withPorts, rule.Key{f.Saddr, rule.THSport}.In(f.set(resolversSet))}
}

var withPorts = rule.L4Proto.OneOf(rule.TCP, rule.UDP)

// showRules queue a packet to the observer. Without a listener it continues to the steering chain.
func showRules(cfg Config) []rule.Rule {
	return []rule.Rule{{rule.Queue{First: cfg.ObserveQueue, Count: 1, Bypass: true}}}
}

// acceptedRules store the mark of a packet that the agent has just accepted, after parts have seen it.
func acceptedRules(cfg Config) []rule.Rule {
	return slices.Concat([]rule.Rule{unmarkedRule(cfg)}, cfg.rulesAt(afterVerdict), []rule.Rule{{rule.Goto(keepChain)}})
}

// unmarkedRule ends the chains after the queues for almost all packets, which the agent has not just
// accepted.
func unmarkedRule(cfg Config) rule.Rule {
	return rule.Rule{rule.MetaMark.HasNone(cfg.Mark), rule.Accept}
}

// keepRules move the agent's mark from the packet, where a verdict can set it, to the connection.
// The mark is cleared by a separate rule because the first two end early for packets without a
// connection. They skip related ICMP errors, which belong to the connection that they are about.
func keepRules(cfg Config) []rule.Rule {
	return []rule.Rule{
		{rule.CTState.IsNot(rule.Related), rule.CTMark.Set(cfg.Mark)},
		expected.And(rule.CTMark.Set(cfg.Mark)),
		{rule.MetaMark.Clear(cfg.Mark | cfg.BlockMark)},
		{ofStale, rule.Jump(renewChain)},
		{rule.CTState.Any(rule.New, rule.Related), noICMP, rule.Goto(recordChain)},
	}
}

// clearMark clears our bits of the packet mark, and preserves all other bits.
func clearMark(cfg Config) rule.Rule {
	ours := cfg.Mark | cfg.BlockMark
	return rule.Rule{rule.MetaMark.Has(ours), rule.MetaMark.Clear(ours)}
}
