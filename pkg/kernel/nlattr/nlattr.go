// Package nlattr splits netlink attributes (struct nlattr) without allocating, and writes them. It is meant
// for frequent messages and long lists, such as notifications and connections. To decode few
// messages, use the AttributeDecoder of github.com/mdlayher/netlink, which copies and decodes
// values.
package nlattr

import (
	"encoding/binary"
	"iter"
	"strings"
)

const (
	headerLen = 4         // struct nlattr: length and type
	typeMask  = 1<<14 - 1 // NLA_TYPE_MASK: all but NLA_F_NESTED and NLA_F_NET_BYTEORDER
)

// Next splits the first attribute off b. The value is part of b. ok is false if b is empty or
// malformed.
func Next(b []byte) (typ uint16, value, rest []byte, ok bool) {
	if len(b) < headerLen {
		return 0, nil, nil, false
	}
	length := int(binary.NativeEndian.Uint16(b))
	if length < headerLen || length > len(b) {
		return 0, nil, nil, false
	}
	typ = binary.NativeEndian.Uint16(b[2:]) & typeMask
	return typ, b[headerLen:length], b[min((length+3)&^3, len(b)):], true // the last one may lack padding
}

// All yields the type and the value of each attribute of b up to the first malformed one.
func All(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for {
			typ, value, rest, ok := Next(b)
			if !ok || !yield(typ, value) {
				return
			}
			b = rest
		}
	}
}

// Each calls set for each attribute of b until set returns false. It reports whether b is
// well-formed and set returned true for all attributes.
func Each(b []byte, set func(typ uint16, value []byte) bool) bool {
	for len(b) > 0 {
		typ, value, rest, ok := Next(b)
		if !ok || !set(typ, value) {
			return false
		}
		b = rest
	}
	return true
}

// Get returns the value of the nested attribute at path, nil if it is missing.
func Get(b []byte, path ...uint16) []byte {
	for _, want := range path {
		var found []byte
		for kind, value := range All(b) {
			if kind == want {
				found = value
				break
			}
		}
		b = found
	}
	return b
}

// Text decodes a string that may end in NUL.
func Text(value []byte) string { return strings.TrimRight(string(value), "\x00") }

// Number decodes a number in network byte order, 0 if it is missing.
func Number(value []byte) (n uint64) {
	for _, x := range value {
		n = n<<8 | uint64(x)
	}
	return n
}
