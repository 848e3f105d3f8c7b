package rule

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// verdict ends a rule.
type verdict struct {
	text, chain string
	kind        expr.VerdictKind
}

// Verdicts.
var (
	Accept Statement = verdict{text: "accept", kind: expr.VerdictAccept}
	Drop   Statement = verdict{text: "drop", kind: expr.VerdictDrop}
	Return Statement = verdict{text: "return", kind: expr.VerdictReturn}
)

// Jump continues with chain, and after its end with the next rule.
func Jump(chain string) Statement { return verdict{"jump " + chain, chain, expr.VerdictJump} }

// Goto continues with chain, and does not come back.
func Goto(chain string) Statement { return verdict{"goto " + chain, chain, expr.VerdictGoto} }

func (v verdict) String() string { return v.text }

func (v verdict) encode(e *encoder) { e.emit(&expr.Verdict{Kind: v.kind, Chain: v.chain}) }

// Counter counts the packet in a named counter.
type Counter string

// String returns c in the syntax of nft.
func (c Counter) String() string { return "counter name " + string(c) }

func (c Counter) encode(e *encoder) {
	e.emit(&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: string(c)})
}

// reject drops the packet and answers its sender.
type reject struct {
	text  string
	reply expr.Reject
}

// Answers to packets.
var (
	// RejectWithReset is for TCP only: a comparison of L4Proto must precede it.
	RejectWithReset Statement = reject{"tcp reset", expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
	// RejectWithICMP answers with an ICMP error of the packet's family.
	RejectWithICMP Statement = reject{"icmpx type admin-prohibited",
		expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}
)

func (r reject) String() string { return "reject with " + r.text }

func (r reject) encode(e *encoder) { e.emit(&r.reply) }

// Queue sends the packet to one of Count queues from First on, chosen by the CPU.
type Queue struct {
	First, Count uint16
	// Bypass accepts the packet if no process listens on the queue.
	Bypass bool
}

func (q Queue) flags() (flags expr.QueueFlag, text string) {
	if q.Bypass {
		flags, text = expr.QueueFlagBypass, "flags bypass "
	}
	if q.Count > 1 {
		flags |= expr.QueueFlagFanout
		text = "flags fanout "
		if q.Bypass {
			text = "flags bypass,fanout "
		}
	}
	return flags, text
}

// String returns q in the syntax of nft.
func (q Queue) String() string {
	_, flags := q.flags()
	text := fmt.Sprintf("queue %sto %d", flags, q.First)
	if q.Count > 1 {
		text += fmt.Sprintf("-%d", q.First+q.Count-1)
	}
	return text
}

func (q Queue) encode(e *encoder) {
	if e.XTables {
		e.emit(q.Target())
		return
	}
	flags, _ := q.flags()
	e.emit(&expr.Queue{Num: q.First, Total: q.Count, Flag: flags})
}

// Target returns the target NFQUEUE, revision 3, for nft_compat: struct xt_NFQ_info_v3 of
// linux/netfilter/xt_NFQUEUE.h. Its flags have the values of the statement's flags.
func (q Queue) Target() expr.Any {
	flags, _ := q.flags()
	// Padded to the alignment of xtables (XT_ALIGN), which is 8 bytes on 64-bit machines.
	info := make(xt.Unknown, 8)
	for i, n := range []uint16{q.First, q.Count, uint16(flags)} {
		binary.NativeEndian.PutUint16(info[2*i:], n)
	}
	return &expr.Target{Name: "NFQUEUE", Rev: 3, Info: &info}
}

// assign changes the bits of a mark.
type assign struct {
	field Field
	bits  uint32
	clear bool
}

// Set sets bits of f, which must be a mark.
func (f Field) Set(bits uint32) Statement { return assign{f, bits, false} }

// Clear clears bits of f, which must be a mark.
func (f Field) Clear(bits uint32) Statement { return assign{f, bits, true} }

func (a assign) String() string {
	op, bits := "|", a.bits
	if a.clear {
		op, bits = "&", ^a.bits
	}
	return fmt.Sprintf("%s set %[1]s %s %#x", a.field.name, op, bits)
}

func (a assign) encode(e *encoder) {
	d := a.field.typ
	keep, set := d.encode(^a.bits), d.encode(a.bits)
	if a.clear {
		set = make([]byte, d.size)
	}
	e.emit(a.field.load(firstRegister), bitwise(keep, set), a.field.store(firstRegister))
}

// Update adds an element to a set, or restarts its timeout. If the set is full or memory is short, the rule
// ends.
type Update struct {
	Set string
	Key Key
	// Seconds is the timeout of the element, 0 for that of the set.
	Seconds uint32
	// PerSecond ends the rule for packets above this rate of the element, if it is not 0, with Burst.
	PerSecond, Burst uint32
}

// String returns u in the syntax of nft.
func (u Update) String() string {
	return fmt.Sprintf("update @%s { %s%s%s }", u.Set, u.Key, timeout(u.Seconds), u.limit())
}

func timeout(seconds uint32) string {
	if seconds == 0 {
		return ""
	}
	return fmt.Sprintf(" timeout %ds", seconds)
}

func (u Update) limit() string {
	if u.PerSecond == 0 {
		return ""
	}
	return fmt.Sprintf(" limit rate %d/second burst %d packets", u.PerSecond, u.Burst)
}

func (u Update) encode(e *encoder) {
	dynset := &expr.Dynset{SrcRegKey: firstRegister, SetName: u.Set, Operation: unix.NFT_DYNSET_OP_UPDATE}
	setSeconds(&dynset.Timeout, u.Seconds)
	if u.PerSecond != 0 {
		dynset.Exprs = []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(u.PerSecond), Unit: expr.LimitTimeSecond, Burst: u.Burst}}
	}
	e.load(u.Key...)
	e.emit(dynset)
}

// setSeconds sets a time.Duration. It is generic so that this package does not import time and cannot read a
// clock.
func setSeconds[Duration ~int64](d *Duration, seconds uint32) { *d = Duration(seconds) * 1e9 }

// Add adds an element with a counter to a set. The timeout of an existing one goes on.
type Add struct {
	Set     string
	Key     Key
	Seconds uint32 // the timeout
}

// String returns a in the syntax of nft. It has two spaces because knftables.Fake would parse "add @set" as a
// reference to a flowtable.
func (a Add) String() string {
	return fmt.Sprintf("add  @%s { %s%s counter }", a.Set, a.Key, timeout(a.Seconds))
}

func (a Add) encode(e *encoder) {
	dynset := &expr.Dynset{SrcRegKey: firstRegister, SetName: a.Set, Operation: unix.NFT_DYNSET_OP_ADD, Exprs: []expr.Any{&expr.Counter{}}}
	setSeconds(&dynset.Timeout, a.Seconds)
	e.load(a.Key...)
	e.emit(dynset)
}
