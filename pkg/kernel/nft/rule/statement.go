package rule

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// verdict ends a rule.
type verdict struct {
	text, chain string
	code        int32
}

// Verdicts of linux/netfilter.h.
const (
	nfDrop   = 0
	nfAccept = 1
)

// Verdicts.
var (
	Accept Statement = verdict{text: "accept", code: nfAccept}
	Drop   Statement = verdict{text: "drop", code: nfDrop}
	Return Statement = verdict{text: "return", code: unix.NFT_RETURN}
)

// Jump continues with chain, and after its end with the next rule.
func Jump(chain string) Statement { return verdict{"jump " + chain, chain, unix.NFT_JUMP} }

// Goto continues with chain, and does not come back.
func Goto(chain string) Statement { return verdict{"goto " + chain, chain, unix.NFT_GOTO} }

func (v verdict) String() string { return v.text }

func (v verdict) encode(e *encoder) {
	e.begin("immediate", number{unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT})
	data := e.Nest(unix.NFTA_IMMEDIATE_DATA)
	nested := e.Nest(unix.NFTA_DATA_VERDICT)
	e.Uint32(unix.NFTA_VERDICT_CODE, uint32(v.code))
	if v.chain != "" {
		e.String(unix.NFTA_VERDICT_CHAIN, v.chain)
	}
	e.End(nested)
	e.End(data)
	e.end()
}

// Counter counts the packet in a named counter.
type Counter string

// String returns c in the syntax of nft.
func (c Counter) String() string { return "counter name " + string(c) }

func (c Counter) encode(e *encoder) {
	e.begin("objref", number{unix.NFTA_OBJREF_IMM_TYPE, unix.NFT_OBJECT_COUNTER})
	e.Bytes(unix.NFTA_OBJREF_IMM_NAME, []byte(c))
	e.end()
}

// reject drops the packet and answers its sender.
type reject struct {
	text string
	kind uint32
	code byte
}

// Answers to packets.
var (
	// RejectWithReset is for TCP only: a comparison of L4Proto must precede it.
	RejectWithReset Statement = reject{"tcp reset", unix.NFT_REJECT_TCP_RST, 0}
	// RejectWithICMP answers with an ICMP error of the packet's family.
	RejectWithICMP Statement = reject{"icmpx type admin-prohibited", unix.NFT_REJECT_ICMPX_UNREACH, unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}
)

func (r reject) String() string { return "reject with " + r.text }

func (r reject) encode(e *encoder) {
	e.begin("reject", number{unix.NFTA_REJECT_TYPE, r.kind})
	e.Bytes(unix.NFTA_REJECT_ICMP_CODE, []byte{r.code})
	e.end()
}

// Queue sends the packet to one of Count queues from First on, chosen by the CPU.
type Queue struct {
	First, Count uint16
	// Bypass accepts the packet if no process listens on the queue.
	Bypass bool
}

func (q Queue) flags() (flags uint16, text string) {
	if q.Bypass {
		flags, text = unix.NFT_QUEUE_FLAG_BYPASS, "flags bypass "
	}
	if q.Count > 1 {
		flags |= unix.NFT_QUEUE_FLAG_CPU_FANOUT
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
	flags, _ := q.flags()
	if e.XTables {
		e.target(q.First, q.Count, flags)
		return
	}
	e.begin("queue")
	e.Uint16(unix.NFTA_QUEUE_NUM, q.First)
	e.Uint16(unix.NFTA_QUEUE_TOTAL, q.Count)
	e.Uint16(unix.NFTA_QUEUE_FLAGS, flags)
	e.end()
}

// target adds the target NFQUEUE, revision 3, for nft_compat: struct xt_NFQ_info_v3 of
// linux/netfilter/xt_NFQUEUE.h. Its flags have the values of the statement's flags.
func (e *encoder) target(numbers ...uint16) {
	// Padded to the alignment of xtables (XT_ALIGN), which is 8 bytes on 64-bit machines.
	info := make([]byte, 8)
	for i, n := range numbers {
		binary.NativeEndian.PutUint16(info[2*i:], n)
	}
	e.begin("target")
	e.String(unix.NFTA_TARGET_NAME, "NFQUEUE")
	e.Uint32(unix.NFTA_TARGET_REV, 3)
	e.Bytes(unix.NFTA_TARGET_INFO, info)
	e.end()
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
	a.field.load(e, firstRegister)
	e.bitwise(keep, set)
	a.field.store(e)
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
	e.beginDynset(unix.NFT_DYNSET_OP_UPDATE, u.Set, u.Key, u.Seconds)
	if u.PerSecond != 0 {
		state := e.beginState("limit")
		e.Uint64(unix.NFTA_LIMIT_RATE, uint64(u.PerSecond))
		e.Uint64(unix.NFTA_LIMIT_UNIT, 1) // in seconds
		e.numbers(number{unix.NFTA_LIMIT_BURST, u.Burst}, number{unix.NFTA_LIMIT_TYPE, unix.NFT_LIMIT_PKTS}, number{unix.NFTA_LIMIT_FLAGS, 0})
		e.endState(state)
	}
	e.endDynset()
}

// beginDynset adds an element to a set. Until endDynset it may get a state.
func (e *encoder) beginDynset(op uint32, set string, key Key, seconds uint32) {
	e.load(key...)
	e.begin("dynset", number{unix.NFTA_DYNSET_SREG_KEY, firstRegister}, number{unix.NFTA_DYNSET_OP, op})
	if seconds != 0 {
		e.Uint64(unix.NFTA_DYNSET_TIMEOUT, 1000*uint64(seconds))
	}
	e.String(unix.NFTA_DYNSET_SET_NAME, set)
	e.Uint32(unix.NFTA_DYNSET_SET_ID, 0)
}

func (e *encoder) endDynset() {
	e.Uint32(unix.NFTA_DYNSET_FLAGS, 0)
	e.end()
}

// beginState begins the expression of an element.
func (e *encoder) beginState(name string) (begun [2]int) {
	begun[0] = e.Begin(unix.NFTA_DYNSET_EXPR)
	e.String(unix.NFTA_EXPR_NAME, name)
	begun[1] = e.Nest(unix.NFTA_EXPR_DATA)
	return begun
}

func (e *encoder) endState(begun [2]int) {
	e.End(begun[1])
	e.End(begun[0])
}

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
	e.beginDynset(unix.NFT_DYNSET_OP_ADD, a.Set, a.Key, a.Seconds)
	state := e.beginState("counter")
	e.Uint64(unix.NFTA_COUNTER_BYTES, 0)
	e.Uint64(unix.NFTA_COUNTER_PACKETS, 0)
	e.endState(state)
	e.endDynset()
}
