package steertest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"
)

// State is what connection tracking says of a packet.
type State string

// States that rules can tell apart. Invalid and untracked packets belong to no
// connection: they have no direction and no ct mark.
const (
	New         State = "new"
	Established State = "established"
	Related     State = "related"
	Invalid     State = "invalid"
	Untracked   State = "untracked"
)

// Packet is one with DNAT behind it. It leaves the node, by postrouting, unless
// it is ToHost. What did not begin at the node has met prerouting before.
type Packet struct {
	Src, Dst   netip.Addr
	Proto      string // as in /etc/protocols: tcp, udp, sctp, icmp, ipv6-icmp
	SrcPort    uint16
	DstPort    uint16
	ICMPv6Type uint8
	HopLimit   uint8 // of IPv6
	State      State // empty means New
	Reply      bool  // of the connection; else original
	Mark       uint32
	CTMark     uint32
	DNAT       bool   // the destination of the connection was translated
	SrcLocal   bool   // Src is an address of this node
	Interface  string // it came in by
	NoWayBack  bool   // no way to Src leads out of the interface that the packet came in by
	ToHost     bool   // is for this node itself: it meets the input hook
	Forwarded  bool   // came in through an interface; neither sent from here nor by IPVS
	SrcSpent   bool   // Src has sent more than any limit of its own lets pass
	DstSpent   bool   // Dst has received more than that
}

// Verdict is the end of a packet's way.
type Verdict string

// Verdicts of Trace.
const (
	Accept Verdict = "accept"
	Drop   Verdict = "drop"
	Queue  Verdict = "queue"
)

// Result tells the way of a packet.
type Result struct {
	Verdict Verdict
	// Hook is where the way ended.
	Hook knftables.BaseChainHook
	// Statement is the statement that queued the packet, as the rule has it;
	// empty when none did.
	Statement string
	// Mark and CTMark are what the packet and its connection carry afterwards.
	Mark, CTMark uint32
}

// Agent answers for those who listen on the queues: it gets the packet as queued
// and the statement that queued it, and returns Accept or Drop and the packet
// mark of its verdict.
type Agent func(p Packet, statement string) (Verdict, uint32)

// Trace sends p through the base chains of fake's table at the hooks of its way.
// At a queue it asks agent, and an accepted packet goes on with the next base
// chain. With a nil agent the way ends there with Queue. What the rules say that
// Trace does not know is an error.
func Trace(fake *knftables.Fake, p Packet, agent Agent) (Result, error) {
	fake.RLock()
	defer fake.RUnlock()
	if p.State == "" {
		p.State = New
	}
	w := &walk{table: fake.Table, packet: p}
	if w.table == nil {
		return Result{Verdict: Accept, Mark: p.Mark, CTMark: p.CTMark}, nil
	}
	var bases []*knftables.FakeChain
	for _, hook := range p.hooks() {
		there, err := baseChains(w.table, hook)
		if err != nil {
			return Result{}, err
		}
		bases = append(bases, there...)
	}
	result := Result{Verdict: Accept}
	for _, base := range bases {
		w.hook = *base.Hook
		verdict, err := w.base(base)
		if err != nil {
			return Result{}, err
		}
		if verdict == Queue {
			result.Statement = w.statement
			if agent != nil {
				verdict, w.packet.Mark = agent(w.packet, w.statement)
			}
		}
		result.Hook = *base.Hook
		if result.Verdict = verdict; verdict != Accept {
			break
		}
	}
	result.Mark, result.CTMark = w.packet.Mark, w.packet.CTMark
	return result, nil
}

// hooks are those of the packet's way, in order.
func (p Packet) hooks() []knftables.BaseChainHook {
	switch {
	case p.ToHost:
		return []knftables.BaseChainHook{knftables.PreroutingHook, knftables.InputHook}
	case p.Forwarded:
		return []knftables.BaseChainHook{knftables.PreroutingHook, knftables.PostroutingHook}
	}
	return []knftables.BaseChainHook{knftables.PostroutingHook}
}

// baseChains are those at a hook, in the order in which packets meet them.
func baseChains(table *knftables.FakeTable, hook knftables.BaseChainHook) ([]*knftables.FakeChain, error) {
	type ranked struct {
		chain    *knftables.FakeChain
		priority int
	}
	var bases []ranked
	for _, c := range table.Chains {
		if c.Hook == nil || *c.Hook != hook {
			continue
		}
		n, err := knftables.ParsePriority(knftables.InetFamily, string(*c.Priority))
		if err != nil {
			return nil, fmt.Errorf("chain %s: %w", c.Name, err)
		}
		bases = append(bases, ranked{c, n})
	}
	slices.SortFunc(bases, func(a, b ranked) int { return cmp.Compare(a.priority, b.priority) })
	chains := make([]*knftables.FakeChain, len(bases))
	for i, b := range bases {
		chains[i] = b.chain
	}
	return chains, nil
}

// walk is the way of one packet through a table.
type walk struct {
	table     *knftables.FakeTable
	hook      knftables.BaseChainHook
	packet    Packet
	statement string
}

// base runs a base chain; who falls out of it meets its policy.
func (w *walk) base(c *knftables.FakeChain) (Verdict, error) {
	verdict, err := w.chain(c.Name, 0)
	if verdict != "" || err != nil {
		return verdict, err
	}
	if c.Policy != nil && *c.Policy == knftables.DropPolicy {
		return Drop, nil
	}
	return Accept, nil
}

// chain returns no verdict for a packet that reaches its end.
func (w *walk) chain(name string, depth int) (Verdict, error) {
	c := w.table.Chains[name]
	if c == nil || depth > 16 {
		return "", fmt.Errorf("chain %s at depth %d cannot be entered", name, depth)
	}
	for _, r := range c.Rules {
		verdict, leave, err := w.rule(r.Rule, depth)
		if err != nil {
			return "", fmt.Errorf("chain %s: rule %q: %w", name, r.Rule, err)
		}
		if verdict != "" || leave {
			return verdict, nil
		}
	}
	return "", nil
}

// rule runs one rule. leave means that the chain is over for the packet, though
// it has no verdict.
func (w *walk) rule(rule string, depth int) (verdict Verdict, leave bool, err error) {
	words := tokens(strings.Fields(rule))
	for len(words) > 0 {
		switch word := words[0]; word {
		case "accept", "drop":
			return Verdict(word), false, nil
		case "return":
			return "", true, nil
		case "queue", "xt":
			w.statement = strings.Join(words, " ")
			return Queue, false, nil
		case "goto", "jump":
			verdict, err := w.chain(words.at(1), depth+1)
			if word == "goto" || verdict != "" || err != nil {
				return verdict, true, err
			}
			words = words.skip(2)
		default:
			var matched bool
			if matched, words, err = w.expression(words); err != nil || !matched {
				return "", false, err
			}
		}
	}
	return "", false, nil
}
