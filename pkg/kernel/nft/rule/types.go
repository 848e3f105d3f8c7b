package rule

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// dataType is a data type of nft.
type dataType struct {
	name string
	id   uint32 // enum datatypes in nft's include/datatype.h
	size int    // in bytes
	// declared is the byte order that nft declares, of enum byteorder in nft's
	// include/datatype.h.
	declared uint32
	names    map[string]uint64
	max      uint64 // the largest number; 0 if only names are allowed
	flags    bool   // values are bits, which can be combined
}

// enum byteorder.
const (
	orderInvalid = iota // declared for types of one byte
	orderHost
	orderBig
)

var (
	nfProto = &dataType{name: "nf_proto", id: 2, size: 1,
		names: map[string]uint64{"ipv4": unix.NFPROTO_IPV4, "ipv6": unix.NFPROTO_IPV6}}
	integer   = &dataType{name: "integer", id: 4, size: 1, max: 0xff}
	ipv4Addr  = &dataType{name: "ipv4_addr", id: 7, size: 4, declared: orderBig}
	ipv6Addr  = &dataType{name: "ipv6_addr", id: 8, size: 16, declared: orderBig}
	etherType = &dataType{name: "ether_type", id: 10, size: 2, declared: orderBig,
		names: map[string]uint64{"ip": unix.ETH_P_IP, "arp": unix.ETH_P_ARP, "ip6": unix.ETH_P_IPV6}}
	inetProto = &dataType{name: "inet_proto", id: 12, size: 1, max: 0xff,
		names: map[string]uint64{
			"icmp": unix.IPPROTO_ICMP, "tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP,
			"icmpv6": unix.IPPROTO_ICMPV6, "sctp": unix.IPPROTO_SCTP,
		}}
	inetService = &dataType{name: "inet_service", id: 13, size: 2, declared: orderBig, max: 0xffff}
	mark        = &dataType{name: "mark", id: 19, size: 4, declared: orderHost, max: 0xffffffff}
	ifaceIndex  = &dataType{name: "iface_index", id: 20, size: 4, declared: orderHost, max: 0xffffffff}
	ctState     = &dataType{name: "ct_state", id: 26, size: 4, declared: orderHost, flags: true,
		names: map[string]uint64{"invalid": 1, "established": 2, "related": 4, "new": 8, "untracked": 64}}
	ctDir = &dataType{name: "ct_dir", id: 27, size: 1,
		names: map[string]uint64{"original": 0, "reply": 1}}
	ctStatus = &dataType{name: "ct_status", id: 28, size: 4, declared: orderHost, flags: true, max: 0xffffffff,
		names: map[string]uint64{"assured": 4, "confirmed": 8, "snat": 16, "dnat": 32}}
	tcpFlag     = &dataType{name: "tcp_flag", id: 14, size: 1, max: 0xff}
	icmpv6Type  = &dataType{name: "icmpv6_type", id: 29, size: 1, max: 0xff}
	fibAddrType = &dataType{name: "fib_addrtype", id: 38, size: 4, declared: orderHost,
		names: map[string]uint64{
			"unicast": unix.RTN_UNICAST, "local": unix.RTN_LOCAL, "broadcast": unix.RTN_BROADCAST,
			"anycast": unix.RTN_ANYCAST, "multicast": unix.RTN_MULTICAST,
		}}
	// fibPresent is whether a route exists. Its register has 32 bits.
	fibPresent = &dataType{name: "boolean", id: 39, size: 4, declared: orderHost,
		names: map[string]uint64{"missing": 0, "exists": 1}}
	ifname = &dataType{name: "ifname", id: 41, size: unix.IFNAMSIZ, declared: orderHost}
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

// BigEndian reports whether nft declares the keys as big endian.
func (t Type) BigEndian() bool { return t.ByteOrder() == orderBig }

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
		value, err := d.value(parts[i], binary.NativeEndian)
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
	first, last, err := all[0].interval(part, binary.NativeEndian)
	if err != nil {
		return nil, nil, fmt.Errorf("interval %q: %w", part, err)
	}
	return first, successor(last), nil
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

// value encodes a value. host is the host byte order.
func (d *dataType) value(text string, host binary.ByteOrder) ([]byte, error) {
	switch d {
	case ipv4Addr, ipv6Addr:
		return d.address(text)
	case ifname:
		return interfaceName(text)
	}
	n, ok := d.names[text]
	switch {
	case ok:
	case d.max == 0:
		return nil, fmt.Errorf("%q is not one of %s", text, strings.Join(slices.Sorted(maps.Keys(d.names)), ", "))
	default:
		var err error
		if n, err = number(text, d.max); err != nil {
			return nil, fmt.Errorf("%w (type %s)", err, d.name)
		}
	}
	return d.encode(n, host), nil
}

func (d *dataType) encode(n uint64, host binary.ByteOrder) []byte {
	order := binary.ByteOrder(binary.BigEndian)
	if d.declared == orderHost {
		order = host
	}
	b := make([]byte, d.size)
	switch d.size {
	case 1:
		b[0] = byte(n)
	case 2:
		order.PutUint16(b, uint16(n))
	default:
		order.PutUint32(b, uint32(n))
	}
	return b
}

// number parses a number of at most max.
func number(text string, max uint64) (uint64, error) {
	digits, base := text, 10
	if hex, ok := strings.CutPrefix(text, "0x"); ok {
		digits, base = hex, 16
	} else if len(text) > 1 && text[0] == '0' {
		return 0, fmt.Errorf("%q begins with 0, which nft takes for an octal number", text)
	}
	n, err := strconv.ParseUint(digits, base, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && n > max:
		return 0, fmt.Errorf("%q is above %d", text, max)
	case err != nil:
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return n, nil
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

// interval encodes a value, a range or a prefix as its first and its last value.
func (d *dataType) interval(text string, host binary.ByteOrder) (first, last []byte, err error) {
	isAddress := d == ipv4Addr || d == ipv6Addr
	if d.declared == orderHost || d.max == 0 && !isAddress {
		return nil, nil, fmt.Errorf("type %s has no intervals", d.name)
	}
	if strings.Contains(text, "/") {
		return d.prefix(text)
	}
	from, to, isRange := strings.Cut(text, "-")
	if first, err = d.value(from, host); err != nil || !isRange {
		return first, first, err
	}
	if last, err = d.value(to, host); err != nil {
		return nil, nil, err
	}
	if bytes.Compare(first, last) >= 0 {
		return nil, nil, fmt.Errorf("range %q is not ascending", text)
	}
	return first, last, nil
}

// prefix encodes the first and the last address of a prefix.
func (d *dataType) prefix(text string) (first, last []byte, err error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil || p.Addr().BitLen() != 8*d.size:
		return nil, nil, fmt.Errorf("%q is not a prefix of type %s", text, d.name)
	case p != p.Masked():
		return nil, nil, fmt.Errorf("%q has bits after the prefix", text)
	}
	first = p.Addr().AsSlice()
	last = bytes.Clone(first)
	for i, m := range mask(p.Bits(), d.size) {
		last[i] |= ^m
	}
	return first, last, nil
}

// mask returns a mask with the first bits set, of size bytes.
func mask(bits, size int) []byte {
	m := make([]byte, size)
	for i := range bits {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return m
}
