package rule

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// dataType is a data type of nft.
type dataType struct {
	name string // of types that are allowed in the keys of named sets
	id   uint32 // enum datatypes in nft's include/datatype.h
	size int    // in bytes
	// declared is the byte order that nft declares, of enum byteorder in nft's
	// include/datatype.h.
	declared uint32
}

// enum byteorder.
const (
	orderInvalid = iota // declared for types of one byte
	orderHost
	orderBig
)

var (
	nfProto     = &dataType{"nf_proto", 2, 1, orderInvalid}
	ipv4Addr    = &dataType{"ipv4_addr", 7, 4, orderBig}
	ipv6Addr    = &dataType{"ipv6_addr", 8, 16, orderBig}
	inetProto   = &dataType{"inet_proto", 12, 1, orderInvalid}
	inetService = &dataType{"inet_service", 13, 2, orderBig}
	mark        = &dataType{"mark", 19, 4, orderHost}
	ifname      = &dataType{"ifname", 41, unix.IFNAMSIZ, orderHost}

	octet       = &dataType{id: 4, size: 1}
	etherType   = &dataType{"ether_type", 10, 2, orderBig}
	ifaceIndex  = &dataType{id: 20, size: 4, declared: orderHost}
	ctBits      = &dataType{id: 26, size: 4, declared: orderHost}
	ctDir       = &dataType{id: 27, size: 1}
	icmpv6Type  = &dataType{"icmpv6_type", 29, 1, orderInvalid}
	fibAddrType = &dataType{"fib_addrtype", 38, 4, orderHost}
	// fibPresent is whether a route exists. Its register has 32 bits.
	fibPresent = &dataType{id: 39, size: 4, declared: orderHost}
)

// keyTypes are the types allowed in the keys of named sets.
var keyTypes = []*dataType{nfProto, ipv4Addr, ipv6Addr, inetProto, inetService, mark, ifname}

const (
	maxParts = 5 // of a concatenation: nft packs their IDs into 32 bits
	partBits = 6
	wordSize = 4 // bytes; each part of a concatenation begins at a multiple of it
)

// Type is the type of the keys of a set: a data type or a concatenation. Types can be compared
// with ==. No set has the zero Type.
type Type struct{ parts [maxParts]*dataType }

// ParseType parses the type of a set as nft writes it, such as "ipv4_addr . inet_service".
func ParseType(text string) (Type, error) {
	var t Type
	names := strings.Split(text, " . ")
	if len(names) > maxParts {
		return Type{}, fmt.Errorf("type %q has more than %d parts", text, maxParts)
	}
	for i, name := range names {
		known := slices.IndexFunc(keyTypes, func(d *dataType) bool { return d.name == name })
		if known < 0 {
			return Type{}, fmt.Errorf("type %q: %q is not a known type of keys", text, name)
		}
		t.parts[i] = keyTypes[known]
	}
	return t, nil
}

// dataTypes returns the parts without the unused places.
func (t Type) dataTypes() []*dataType {
	n := 0
	for n < maxParts && t.parts[n] != nil {
		n++
	}
	return t.parts[:n]
}

// ID returns nft's number of the type, with 6 bits for each part of a concatenation.
func (t Type) ID() uint32 {
	var id uint32
	for _, d := range t.dataTypes() {
		id = id<<partBits | d.id
	}
	return id
}

// Len returns the length of a key in bytes. Each part of a concatenation is padded.
func (t Type) Len() uint32 {
	all := t.dataTypes()
	if len(all) == 1 {
		return uint32(all[0].size)
	}
	registers := 0
	for _, d := range all {
		registers += d.registers()
	}
	return uint32(registers * wordSize)
}

func (d *dataType) registers() int { return (d.size + wordSize - 1) / wordSize }

// ByteOrder returns the byte order of the keys as nft writes it to the user data of a set: 1 for
// host byte order, 2 for big endian, and 0 for single bytes and concatenations.
func (t Type) ByteOrder() uint32 {
	if all := t.dataTypes(); len(all) == 1 {
		return all[0].declared
	}
	return orderInvalid
}

// String returns the type as nft writes it.
func (t Type) String() string {
	var names []string
	for _, d := range t.dataTypes() {
		names = append(names, d.name)
	}
	return strings.Join(names, " . ")
}

// Key encodes the key of an element from a string for each part.
func (t Type) Key(parts []string) ([]byte, error) {
	all := t.dataTypes()
	if len(parts) != len(all) {
		return nil, fmt.Errorf("key %q has %d parts, want %d of type %q", parts, len(parts), len(all), t)
	}
	var key []byte
	for i, d := range all {
		value, err := d.value(parts[i])
		if err != nil {
			return nil, fmt.Errorf("part %d of key %q: %w", i+1, parts, err)
		}
		key = append(key, value...)
		if len(all) > 1 {
			key = append(key, make([]byte, d.registers()*wordSize-d.size)...)
		}
	}
	return key, nil
}

// Interval encodes an element of an interval set, which is an address or a prefix. It returns the
// first key, and the key after the last one, which is nil if there is none.
func (t Type) Interval(part string) (start, end []byte, err error) {
	all := t.dataTypes()
	if len(all) != 1 {
		return nil, nil, fmt.Errorf("interval %q: a set of type %q has no intervals", part, t)
	}
	d := all[0]
	var p netip.Prefix
	if strings.Contains(part, "/") {
		p, err = netip.ParsePrefix(part)
	} else if a, err2 := netip.ParseAddr(part); err2 == nil {
		p = netip.PrefixFrom(a, a.BitLen())
	}
	switch {
	case err != nil || d != ipv4Addr && d != ipv6Addr || p.Addr().BitLen() != 8*d.size:
		return nil, nil, fmt.Errorf("interval %q is not a prefix of type %s", part, d.name)
	case p != p.Masked():
		return nil, nil, fmt.Errorf("interval %q has bits after the prefix", part)
	}
	first, last := bounds(p)
	return first, successor(last), nil
}

// bounds encodes the first and the last address of a prefix.
func bounds(p netip.Prefix) (first, last []byte) {
	first = p.Addr().AsSlice()
	last = bytes.Clone(first)
	for i, m := range prefixMask(p.Bits(), len(first)) {
		last[i] |= ^m
	}
	return first, last
}

// prefixMask returns a mask with the first bits set, of size bytes.
func prefixMask(bits, size int) []byte {
	m := make([]byte, size)
	for i := range bits {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return m
}

// successor returns the next number after b, nil if there is none.
func successor(b []byte) []byte {
	n := bytes.Clone(b)
	for i := len(n) - 1; i >= 0; i-- {
		n[i]++
		if n[i] != 0 {
			return n
		}
	}
	return nil
}

// value encodes a part of a key.
func (d *dataType) value(text string) ([]byte, error) {
	switch d {
	case ipv4Addr, ipv6Addr:
		return d.address(text)
	case ifname:
		return interfaceName(text)
	case nfProto:
		switch text {
		case "ipv4":
			return []byte{unix.NFPROTO_IPV4}, nil
		case "ipv6":
			return []byte{unix.NFPROTO_IPV6}, nil
		}
		return nil, fmt.Errorf("%q is not one of ipv4, ipv6", text)
	}
	n, err := strconv.ParseUint(text, 10, 8*d.size)
	if err != nil {
		return nil, fmt.Errorf("%q is not a number of type %s", text, d.name)
	}
	return d.encode(uint32(n)), nil
}

// encode encodes a number.
func (d *dataType) encode(n uint32) []byte {
	switch {
	case d.size == 1:
		return []byte{byte(n)}
	case d.size == 2:
		return binary.BigEndian.AppendUint16(nil, uint16(n))
	}
	return binary.NativeEndian.AppendUint32(nil, n)
}

func (d *dataType) address(text string) ([]byte, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" || addr.BitLen() != 8*d.size {
		return nil, fmt.Errorf("%q is not of type %s", text, d.name)
	}
	return addr.AsSlice(), nil
}

// interfaceName encodes the name of an interface. Names are not quoted, because the kernel allows
// quotes in them.
func interfaceName(name string) ([]byte, error) {
	switch {
	case name == "":
		return nil, errors.New("the name of an interface is empty")
	case len(name) >= unix.IFNAMSIZ:
		return nil, fmt.Errorf("%q is too long for the name of an interface", name)
	}
	return append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...), nil
}
