// Package rule has nftables rules as values. They encode to the kernel's netlink attributes as nft 1.0
// encodes them, and print in the syntax of nft(8). It also encodes set types and element keys. It opens no
// socket and knows no table.
//
// It has only what the agent's rules need: a test compares all of them with the output of nft. The kernel
// checks little: for example, it accepts a lookup in a set of another type if the keys have the same length.
package rule

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
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

// Options describes the table that a rule is for.
type Options struct {
	// Family is an NFPROTO constant.
	Family byte
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
func (r Rule) Encode(o Options) (Encoded, error) {
	e := encoder{Options: o}
	for _, s := range r {
		s.encode(&e)
	}
	list := make([]netlink.Attribute, 0, len(e.exprs))
	for _, x := range e.exprs {
		data, err := marshal(o.Family, x)
		if err != nil {
			return Encoded{}, fmt.Errorf("encode rule %s: %w", r, err)
		}
		list = append(list, netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: data})
	}
	exprs, err := netlink.MarshalAttributes(list)
	return Encoded{exprs, e.sets}, err
}

// encoder collects the expressions of one rule.
type encoder struct {
	Options
	exprs []expr.Any
	sets  []AnonymousSet
	met   []condition // that earlier expressions compare
}

func (e *encoder) emit(x ...expr.Any) { e.exprs = append(e.exprs, x...) }

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
		e.emit(f.load(register(words)))
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

// Dump returns a line for each anonymous set with its elements, where ! marks the end of an interval, and a
// line for each expression with its name and attributes. Values except names are in hexadecimal, so that
// they show their lengths.
func (e Encoded) Dump() string {
	var b strings.Builder
	for i, set := range e.Sets {
		fmt.Fprintf(&b, "set %d type %q", i+1, set.Type)
		for _, e := range set.Elements {
			end := ""
			if e.IntervalEnd {
				end = "!"
			}
			fmt.Fprintf(&b, " %s%x", end, e.Key)
		}
		b.WriteByte('\n')
	}
	for _, e := range attributes(e.Exprs) {
		writeExpression(&b, e.Data)
		b.WriteByte('\n')
	}
	return b.String()
}

// writeExpression writes the name and the attributes of an expression.
func writeExpression(b *strings.Builder, data []byte) {
	name := ""
	for _, a := range attributes(data) {
		if a.Type == unix.NFTA_EXPR_NAME {
			name = strings.TrimRight(string(a.Data), "\x00")
			b.WriteString(name)
			continue
		}
		for _, a := range attributes(a.Data) {
			fmt.Fprintf(b, " %d=", a.Type&^unix.NLA_F_NESTED)
			if name == "dynset" && a.Type&^unix.NLA_F_NESTED == unix.NFTA_DYNSET_EXPR { // some senders leave the flag out
				b.WriteString("[ ")
				writeExpression(b, a.Data)
				b.WriteString(" ]")
				continue
			}
			writeValue(b, a)
		}
	}
}

func writeValue(b *strings.Builder, a netlink.Attribute) {
	switch {
	case a.Type&unix.NLA_F_NESTED != 0:
		b.WriteString("[")
		for _, a := range attributes(a.Data) {
			fmt.Fprintf(b, " %d=", a.Type&^unix.NLA_F_NESTED)
			writeValue(b, a)
		}
		b.WriteString(" ]")
	case isName(a.Data):
		fmt.Fprintf(b, "%q", a.Data)
	default:
		fmt.Fprintf(b, "%x", a.Data)
	}
}

// attributes splits encoded attributes.
func attributes(data []byte) []netlink.Attribute {
	all, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		return nil
	}
	return all
}

// isName reports whether data is printed as text: it is longer than two bytes and consists of characters of
// names.
func isName(data []byte) bool {
	name := strings.TrimSuffix(string(data), "\x00")
	return len(name) > 2 && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("@._:/-%", r))
	})
}
