package rule

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// statement is an action of a rule.
type statement struct {
	// compile compiles the rest of the statement after its first token.
	compile func(c *compiler, first token) error
	// final is true if the statement ends the rule.
	final bool
}

// statements are the statements by first token. Assignments to a mark are not here: they begin
// like a match.
var statements = map[string]statement{
	"accept":  {verdict(expr.VerdictAccept), true},
	"drop":    {verdict(expr.VerdictDrop), true},
	"return":  {verdict(expr.VerdictReturn), true},
	"jump":    {chainVerdict(expr.VerdictJump), true},
	"goto":    {chainVerdict(expr.VerdictGoto), true},
	"queue":   {(*compiler).queue, true},
	"reject":  {(*compiler).reject, true},
	"counter": {(*compiler).counter, false},
	"add":     {update(unix.NFT_DYNSET_OP_ADD), false},
	"update":  {update(unix.NFT_DYNSET_OP_UPDATE), false},
}

func verdict(kind expr.VerdictKind) func(*compiler, token) error {
	return func(c *compiler, _ token) error {
		c.emit(&expr.Verdict{Kind: kind})
		return nil
	}
}

func chainVerdict(kind expr.VerdictKind) func(*compiler, token) error {
	return func(c *compiler, _ token) error {
		chain, err := c.name()
		if err != nil {
			return err
		}
		c.emit(&expr.Verdict{Kind: kind, Chain: chain})
		return nil
	}
}

// reject compiles "reject with tcp reset", which needs a comparison with TCP before it, and
// "reject with icmpx type admin-prohibited".
func (c *compiler) reject(first token) error {
	if err := c.expect("with"); err != nil {
		return err
	}
	if c.accept("icmpx") {
		c.emit(&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED})
		return c.expect("type", "admin-prohibited")
	}
	if c.compared["meta l4proto"] != string([]byte{unix.IPPROTO_TCP}) {
		return first.errorf("needs \"meta l4proto tcp\" before it")
	}
	c.emit(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	return c.expect("tcp", "reset")
}

// counter compiles "counter name x".
func (c *compiler) counter(token) error {
	if err := c.expect("name"); err != nil {
		return err
	}
	name, err := c.name()
	if err != nil {
		return err
	}
	c.emit(&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name})
	return nil
}

// assign compiles the rest of "meta mark set meta mark & n" or "… | n".
func (c *compiler) assign(parts []loaded) error {
	p := parts[0]
	if len(parts) > 1 || p.store == nil {
		return p.token.errorf("cannot be set")
	}
	if err := c.expect(strings.Fields(p.name)...); err != nil {
		return err
	}
	op := c.next()
	bits, err := c.value(p.key)
	if err != nil {
		return err
	}
	var change expr.Any
	switch op.text {
	case "&":
		change = bitwise(bits, make([]byte, p.key.size))
	case "|":
		keep := make([]byte, len(bits))
		for i := range bits {
			keep[i] = ^bits[i]
		}
		change = bitwise(keep, bits)
	default:
		return op.errorf("want & or | here")
	}
	c.emit(p.load(firstRegister), change, p.store(firstRegister))
	return nil
}

// update compiles statements that add an element with a key from the packet to a set.
func update(operation uint32) func(*compiler, token) error {
	return func(c *compiler, _ token) error {
		set := c.next()
		if err := c.expect("{"); err != nil {
			return err
		}
		parts, key, err := c.concatenation()
		if err != nil {
			return err
		}
		name, err := c.set(set, key)
		if err != nil {
			return err
		}
		dynset := &expr.Dynset{SrcRegKey: firstRegister, SetName: name, Operation: operation}
		if err := c.element(dynset); err != nil {
			return err
		}
		if err := c.load(parts); err != nil {
			return err
		}
		c.emit(dynset)
		return nil
	}
}

// element compiles the rest of an element, after its key: a timeout, a state or both.
func (c *compiler) element(dynset *expr.Dynset) error {
	if err := c.timeout(dynset); err != nil {
		return err
	}
	if dynset.Timeout != 0 && c.accept("}") {
		return nil
	}
	state, err := c.state()
	if err != nil {
		return err
	}
	dynset.Exprs = []expr.Any{state}
	return c.expect("}")
}

// timeout compiles the timeout of an element in seconds, if there is one.
func (c *compiler) timeout(dynset *expr.Dynset) error {
	if !c.accept("timeout") {
		return nil
	}
	t := c.next()
	seconds, ok := strings.CutSuffix(t.text, "s")
	if !ok {
		return t.errorf("want seconds here, such as 30s")
	}
	n, err := t.number(seconds, math.MaxUint32)
	setSeconds(&dynset.Timeout, n)
	return err
}

// setSeconds sets a time.Duration. It is generic so that this package does not import time and
// cannot read a clock.
func setSeconds[Duration ~int64](d *Duration, n uint64) { *d = Duration(n) * 1e9 }

// state compiles the counter or limit of each element of a set.
func (c *compiler) state() (expr.Any, error) {
	if c.accept("counter") {
		return &expr.Counter{}, nil
	}
	if err := c.expect("limit", "rate"); err != nil {
		return nil, err
	}
	t := c.next()
	rate, ok := strings.CutSuffix(t.text, "/second")
	if !ok {
		return nil, t.errorf("want a rate here, such as 10/second")
	}
	n, err := t.number(rate, math.MaxUint32)
	if err != nil {
		return nil, err
	}
	if err := c.expect("burst"); err != nil {
		return nil, err
	}
	burst, err := c.number(math.MaxUint32)
	if err != nil {
		return nil, err
	}
	return &expr.Limit{Type: expr.LimitTypePkts, Rate: n, Unit: expr.LimitTimeSecond, Burst: uint32(burst)}, c.expect("packets")
}

// queue compiles "queue [flags bypass,fanout] to n[-m]".
func (c *compiler) queue(token) error {
	var flags expr.QueueFlag
	for another := c.accept("flags"); another; another = c.accept(",") {
		switch t := c.next(); t.text {
		case "bypass":
			flags |= expr.QueueFlagBypass
		case "fanout":
			flags |= expr.QueueFlagFanout
		default:
			return t.errorf("is not one of bypass, fanout")
		}
	}
	if err := c.expect("to"); err != nil {
		return err
	}
	t := c.next()
	from, to, isRange := strings.Cut(t.text, "-")
	first, err := number(from, math.MaxUint16)
	last := first
	if err == nil && isRange {
		last, err = number(to, math.MaxUint16)
	}
	switch {
	case err != nil:
		return t.errorf("%w", err)
	case isRange && last <= first:
		return t.errorf("the range is not ascending")
	case !isRange && flags&expr.QueueFlagFanout != 0:
		return t.errorf("fanout needs a range of queues")
	case last-first == math.MaxUint16:
		return t.errorf("the range has more than %d queues", math.MaxUint16)
	}
	queue := &expr.Queue{Num: uint16(first), Total: uint16(last - first + 1), Flag: flags}
	if c.XTables {
		c.emit(c.target(queue))
	} else {
		c.emit(queue)
	}
	return nil
}

// target returns the target NFQUEUE, revision 3, for nft_compat: struct xt_NFQ_info_v3 of
// linux/netfilter/xt_NFQUEUE.h. Its flags have the values of the statement's flags.
func (c *compiler) target(q *expr.Queue) expr.Any {
	// Padded to the alignment of xtables (XT_ALIGN), which is 8 bytes on 64-bit machines.
	info := make(xt.Unknown, 8)
	for i, n := range []uint16{q.Num, q.Total, uint16(q.Flag)} {
		binary.ByteOrder(c.host).PutUint16(info[2*i:], n)
	}
	return &expr.Target{Name: "NFQUEUE", Rev: 3, Info: &info}
}
