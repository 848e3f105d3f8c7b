package steertest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// Verdict is the final verdict on a packet.
type Verdict string

// Verdicts of Trace.
const (
	Accept Verdict = "accept"
	Drop   Verdict = "drop"
	Queue  Verdict = "queue"
	Reject Verdict = "reject" // like Drop, and the sender gets an answer
)

// Result is the result of a Trace.
type Result struct {
	Verdict Verdict
	// Hook is the hook of the final verdict.
	Hook knftables.BaseChainHook
	// Statement is the statement that queued the packet, empty without one.
	Statement string
	// Mark and CTMark are the final marks of the packet and its connection.
	Mark, CTMark uint32
	// Rules is the number of evaluated rules at all hooks.
	Rules int
}

// Agent listens on the queues. It gets a queued packet and the statement that queued it, and returns
// Accept or Drop and the packet mark of the verdict.
type Agent func(p Packet, statement string) (Verdict, uint32)

// Trace evaluates the base chains of fake's table at the hooks that p passes. It calls agent for a
// queued packet, which continues with the next base chain if accepted. With a nil agent the trace ends
// with Queue. Elements that rules add to sets stay there. Rules that are not known by Learn
// are errors.
func Trace(fake *knftables.Fake, p Packet, agent Agent) (Result, error) {
	fake.Lock()
	defer fake.Unlock()
	if p.State == "" {
		p.State = New
	}
	w := &walk{table: fake.Table, packet: p}
	if w.table == nil {
		return Result{Verdict: Accept, Mark: p.Mark, CTMark: p.CTMark}, nil
	}
	var bases []*knftables.FakeChain
	for _, hook := range p.hooks() {
		chains, err := baseChains(w.table, hook)
		if err != nil {
			return Result{}, err
		}
		bases = append(bases, chains...)
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
				w.packet.QueuedAt = w.hook
				verdict, w.packet.Mark = agent(w.packet, w.statement)
			}
		}
		result.Hook = *base.Hook
		result.Verdict = verdict
		if verdict != Accept {
			break
		}
	}
	result.Mark, result.CTMark, result.Rules = w.packet.Mark, w.packet.CTMark, w.rules
	return result, nil
}

// hooks returns the hooks that p passes, in order.
func (p Packet) hooks() []knftables.BaseChainHook {
	switch {
	case p.ToHost:
		return []knftables.BaseChainHook{knftables.PreroutingHook, knftables.InputHook}
	case p.Forwarded:
		return []knftables.BaseChainHook{knftables.PreroutingHook, knftables.ForwardHook, knftables.PostroutingHook}
	}
	return []knftables.BaseChainHook{knftables.OutputHook, knftables.PostroutingHook}
}

// baseChains returns the base chains at a hook, ordered by priority.
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

// walk is the state of a Trace.
type walk struct {
	table     *knftables.FakeTable
	hook      knftables.BaseChainHook
	packet    Packet
	statement string
	rules     int // number of evaluated rules

	// Of the rule that is evaluated.
	registers registers
	sets      []rule.AnonymousSet
	source    bool // the last field of the packet was its source address
}

// base evaluates a base chain. At its end the policy of the chain applies.
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

// chain evaluates a chain. The verdict is empty for a packet that reaches its end.
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

// rule evaluates one rule. leave means that the packet leaves the chain without a verdict.
func (w *walk) rule(text string, depth int) (verdict Verdict, leave bool, err error) {
	w.rules++
	r, ok := known.Load(text)
	if !ok {
		return "", false, errors.New("unknown rule")
	}
	o, err := w.expressions(r.(rule.Encoded))
	if o.verdict == Queue {
		w.statement = text[strings.Index(text, "queue "):]
	}
	if o.chain != "" {
		verdict, err = w.chain(o.chain, depth+1)
		return verdict, o.code == unix.NFT_GOTO, err
	}
	return o.verdict, o.code == unix.NFT_RETURN, err
}
