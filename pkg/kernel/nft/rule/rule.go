// Package rule compiles the text of nftables rules, set types and element keys to the kernel's
// netlink attributes, as nft 1.0.6 does. It opens no socket and knows no table.
//
// It compiles only forms of rules that a test compares with the output of nft, and refuses all
// others. The kernel checks little: for example, it accepts a comparison of two values of
// different types if they have the same length.
package rule

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// Options describes the table that a rule is for.
type Options struct {
	// Family is inet or bridge.
	Family knftables.Family
	// XTables compiles queue statements to the target NFQUEUE of xtables, for kernels without
	// the statement.
	XTables bool
	// Set returns the key type of a set of the table, and whether the set exists.
	Set func(name string) (Type, bool)
}

// Rule is a compiled rule.
type Rule struct {
	// Exprs are the expressions of the rule. The Lookup of an anonymous set has the name
	// AnonymousName, and its ID is the index in Sets plus 1.
	Exprs []expr.Any
	// Sets must be added before the rule, in the same transaction.
	Sets []AnonymousSet
}

// AnonymousName is the name of anonymous sets in a transaction. The kernel replaces %d with a
// number.
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

// Compile compiles a rule. Its errors name the column and the refused token.
func Compile(text string, o Options) (Rule, error) {
	return compile(text, o, binary.NativeEndian)
}

// compile takes the host byte order as an argument for tests. It affects values only: the headers
// of attributes are always in the byte order of this machine.
func compile(text string, o Options, host binary.ByteOrder) (Rule, error) {
	c := compiler{Options: o, host: host, compared: make(map[string]string)}
	c.selectors = selectors[o.Family]
	if c.selectors == nil {
		return Rule{}, fmt.Errorf("rules of family %q are not supported", o.Family)
	}
	var err error
	if c.tokens, err = scan(text); err == nil {
		err = c.rule()
	}
	if err != nil {
		return Rule{}, err
	}
	return Rule{c.exprs, c.sets}, nil
}

// Marshal returns the content of NFTA_RULE_EXPRESSIONS. family is an NFPROTO constant. The
// anonymous sets have the IDs firstSet, firstSet+1 and so on.
func (r Rule) Marshal(family byte, firstSet uint32) ([]byte, error) {
	list := make([]netlink.Attribute, 0, len(r.Exprs))
	for _, e := range r.Exprs {
		if lookup, ok := e.(*expr.Lookup); ok && lookup.SetName == AnonymousName {
			numbered := *lookup
			numbered.SetID += firstSet - 1
			e = &numbered
		}
		data, err := marshal(family, e)
		if err != nil {
			return nil, fmt.Errorf("encode a rule: %w", err)
		}
		list = append(list, netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: data})
	}
	return netlink.MarshalAttributes(list)
}

func marshal(family byte, e expr.Any) ([]byte, error) {
	if c, ok := e.(ctAddr); ok {
		return c.marshal()
	}
	return expr.Marshal(family, e)
}

// String returns a line for each anonymous set with its elements, where ! marks the end of an
// interval, and a line for each expression with its name and attributes. Values except names are
// in hexadecimal, so that they show their lengths.
func (r Rule) String() string {
	var b strings.Builder
	for i, set := range r.Sets {
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
	exprs, err := r.Marshal(unix.NFPROTO_INET, 1)
	if err != nil {
		return err.Error()
	}
	for _, e := range attributes(exprs) {
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
			if name == "dynset" && a.Type == unix.NFTA_DYNSET_EXPR { // an expression without NLA_F_NESTED
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

// attributes splits the result of Marshal.
func attributes(data []byte) []netlink.Attribute {
	all, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		return nil
	}
	return all
}

// isName reports whether data is printed as text: it is longer than two bytes and consists of
// characters of names.
func isName(data []byte) bool {
	name := strings.TrimSuffix(string(data), "\x00")
	return len(name) > 2 && !strings.ContainsFunc(name, func(r rune) bool {
		return !isWord(r) && r != '%'
	})
}
