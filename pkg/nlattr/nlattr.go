// Package nlattr splits netlink attributes (struct nlattr) without allocating. It is
// for messages that come often or in large lists, such as connections and
// notifications. A package that decodes few messages uses the AttributeDecoder of
// github.com/mdlayher/netlink instead, which copies values and also decodes them.
package nlattr

import (
	"encoding/binary"
	"iter"
)

const (
	headerLen = 4         // struct nlattr: length and type
	typeMask  = 1<<14 - 1 // without NLA_F_NESTED and NLA_F_NET_BYTEORDER
)

// Next splits the first attribute off b. The value is part of b. It reports false
// when b is empty or malformed.
func Next(b []byte) (typ uint16, value, rest []byte, ok bool) {
	if len(b) < headerLen {
		return 0, nil, nil, false
	}
	length := int(binary.NativeEndian.Uint16(b))
	if length < headerLen || length > len(b) {
		return 0, nil, nil, false
	}
	typ = binary.NativeEndian.Uint16(b[2:]) & typeMask
	return typ, b[headerLen:length], b[min((length+3)&^3, len(b)):], true // the last may lack its padding
}

// All yields the type and the value of each attribute of b, up to one that is
// malformed.
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

// Each calls set for each attribute of b. It reports whether b is well-formed and
// set has accepted all of them.
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
