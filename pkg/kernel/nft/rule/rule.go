// Package rule has nftables rules as values. They encode to the kernel's netlink attributes as nft 1.0
// encodes them, and print in the syntax of nft(8). It also encodes set types and element keys. It opens no
// socket and knows no table.
//
// It has only what the agent's rules need: a test compares all of them with the output of nft. The kernel
// checks little: for example, it accepts a lookup in a set of another type if the keys have the same length.
package rule

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// Rule is a list of matches and statements, which the kernel evaluates in order until one does not match.
type Rule []Statement

// Statement is a match or a statement of a rule.
type Statement interface {
	// String returns it in the syntax of nft.
	String() string
	encode(*encoder)
}

// And returns r with more statements at its end.
func (r Rule) And(more ...Statement) Rule { return slices.Concat(r, more) }

// String returns r in the syntax of nft.
func (r Rule) String() string {
	var all []string
	for _, s := range r {
		all = append(all, s.String())
	}
	return strings.Join(all, " ")
}

// Options are how a rule is encoded.
type Options struct {
	// XTables encodes Queue as the target NFQUEUE of xtables, for kernels without the statement.
	XTables bool
	// FirstSet is the ID of the first anonymous set. The following ones have consecutive IDs.
	FirstSet uint32
}

// Encoded is a rule as the kernel gets it.
type Encoded struct {
	// Exprs is the content of NFTA_RULE_EXPRESSIONS.
	Exprs []byte
	// Sets must be added before the rule, in the same transaction.
	Sets []AnonymousSet
}

// AnonymousName is the name of anonymous sets in a transaction. The kernel replaces %d with a number.
const AnonymousName = "__set%d"

// AnonymousSet is a set whose elements are listed in the rule.
type AnonymousSet struct {
	Type Type
	// Interval is true for an interval set. Each element then begins an interval or ends the
	// previous one.
	Interval bool
	Elements []Element
}

// Element is an element of an AnonymousSet.
type Element struct {
	Key []byte
	// IntervalEnd is true if Key is the first key after an interval.
	IntervalEnd bool
}

// Encode encodes r.
func (r Rule) Encode(o Options) Encoded {
	e := encoder{Options: o, Buffer: make(nlattr.Buffer, 0, 1024)}
	for _, s := range r {
		s.encode(&e)
	}
	return Encoded{e.Buffer, e.sets}
}

// encoder collects the expressions of one rule.
type encoder struct {
	Options
	nlattr.Buffer
	begun [2]int // offsets of the attributes of the expression that has begun
	sets  []AnonymousSet
	met   []condition // that earlier expressions compare
}

// number is an attribute with a number of 32 bits.
type number struct {
	kind  uint16
	value uint32
}

// expression adds an expression with these attributes.
func (e *encoder) expression(name string, all ...number) {
	e.begin(name, all...)
	e.end()
}

// begin begins an expression, which gets further attributes until end.
func (e *encoder) begin(name string, all ...number) {
	e.begun[0] = e.Nest(unix.NFTA_LIST_ELEM)
	e.String(unix.NFTA_EXPR_NAME, name)
	e.begun[1] = e.Nest(unix.NFTA_EXPR_DATA)
	e.numbers(all...)
}

func (e *encoder) end() {
	e.End(e.begun[1])
	e.End(e.begun[0])
}

func (e *encoder) numbers(all ...number) {
	for _, n := range all {
		e.Uint32(n.kind, n.value)
	}
}

// data adds an attribute with a value for or of registers.
func (e *encoder) data(kind uint16, value []byte) {
	start := e.Nest(kind)
	e.Bytes(unix.NFTA_DATA_VALUE, value)
	e.End(start)
}

// compare ends the rule unless the first register compares with value.
func (e *encoder) compare(op uint32, value []byte) {
	e.begin("cmp", number{unix.NFTA_CMP_SREG, firstRegister}, number{unix.NFTA_CMP_OP, op})
	e.data(unix.NFTA_CMP_DATA, value)
	e.end()
}

// bitwise computes (x & mask) ^ xor in the first register.
func (e *encoder) bitwise(mask, xor []byte) {
	e.begin("bitwise", number{unix.NFTA_BITWISE_SREG, firstRegister}, number{unix.NFTA_BITWISE_DREG, firstRegister},
		number{unix.NFTA_BITWISE_LEN, uint32(len(mask))})
	e.data(unix.NFTA_BITWISE_MASK, mask)
	e.data(unix.NFTA_BITWISE_XOR, xor)
	e.end()
}

// lookup ends the rule unless the first registers are in a set. id is 0 for a set with a name.
func (e *encoder) lookup(set string, id uint32, invert bool) {
	e.begin("lookup", number{unix.NFTA_LOOKUP_SREG, firstRegister})
	if invert {
		e.Uint32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
	}
	e.String(unix.NFTA_LOOKUP_SET, set)
	e.Uint32(unix.NFTA_LOOKUP_SET_ID, id)
	e.end()
}

// load loads fields into consecutive registers, after comparing the conditions that they need.
func (e *encoder) load(fields ...Field) {
	for _, f := range fields {
		for _, c := range f.needs {
			if !slices.Contains(e.met, c) {
				e.met = append(e.met, c)
				c.encode(e)
			}
		}
	}
	words := 0
	for _, f := range fields {
		f.load(e, register(words))
		words += f.typ.registers()
	}
}

// firstRegister is the register for all values except the further fields of a Key.
var firstRegister = register(0)

// register returns the number of the register at an offset in words. Offsets that are multiples of four
// have the numbers of the 16-byte registers, as in nft.
func register(words int) uint32 {
	if words%4 == 0 {
		return uint32(unix.NFT_REG_1 + words/4)
	}
	return uint32(unix.NFT_REG32_00 + words)
}
