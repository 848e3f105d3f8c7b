// Package ruletest prints encoded rules for golden files.
package ruletest

import (
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// Dump returns a line for each anonymous set with its elements, where ! marks the end of an interval, and a
// line for each expression with its name and attributes. Values except names are in hexadecimal, so that
// they show their lengths.
func Dump(e rule.Encoded) string {
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
	for _, e := range Attributes(e.Exprs) {
		writeExpression(&b, e.Data)
		b.WriteByte('\n')
	}
	return b.String()
}

// writeExpression writes the name and the attributes of an expression.
func writeExpression(b *strings.Builder, data []byte) {
	name := ""
	for _, a := range Attributes(data) {
		if a.Type == unix.NFTA_EXPR_NAME {
			name = strings.TrimRight(string(a.Data), "\x00")
			b.WriteString(name)
			continue
		}
		for _, a := range Attributes(a.Data) {
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
		for _, a := range Attributes(a.Data) {
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

// Attributes splits encoded attributes.
func Attributes(data []byte) []netlink.Attribute {
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
