package rule

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// Value is what rules compare a field with: a number, a range of numbers or a prefix of addresses.
type Value struct {
	text        string // in the syntax of nft
	first, last uint32
	prefix      netip.Prefix
}

func named(text string, n uint32) Value { return Value{text: text, first: n, last: n} }

// Number returns a number.
func Number(n uint32) Value { return named(fmt.Sprint(n), n) }

// Bits of TCPFlags.
const (
	SYN uint8 = 0x02
	RST uint8 = 0x04
	ACK uint8 = 0x10
)

// Flags returns bits of TCPFlags.
func Flags(bits uint8) Value { return named(fmt.Sprintf("0x%02x", bits), uint32(bits)) }

// Range returns the numbers from first to last.
func Range(first, last uint32) Value {
	return Value{text: fmt.Sprintf("%d-%d", first, last), first: first, last: last}
}

// Prefix returns the addresses of a prefix, or a single address. Except in OneOf and NoneOf, nft has another
// encoding for prefixes of whole bytes, so these are written as ranges.
func Prefix(p netip.Prefix) Value {
	v := Value{text: p.String(), prefix: p}
	switch {
	case p.IsSingleIP():
		v.text = p.Addr().String()
	case p.Bits()%8 == 0:
		_, last := bounds(p)
		end, _ := netip.AddrFromSlice(last)
		v.text = fmt.Sprintf("%s-%s", p.Addr(), end)
	}
	return v
}

// Named values.
var (
	ICMP   = named("icmp", unix.IPPROTO_ICMP)
	TCP    = named("tcp", unix.IPPROTO_TCP)
	UDP    = named("udp", unix.IPPROTO_UDP)
	ICMPv6 = named("icmpv6", unix.IPPROTO_ICMPV6)
	SCTP   = named("sctp", unix.IPPROTO_SCTP)

	// Of CTState: NF_CT_STATE_BIT of linux/netfilter/nf_conntrack_common.h.
	Established = named("established", 1<<1)
	Related     = named("related", 1<<2)
	New         = named("new", 1<<3)
	Untracked   = named("untracked", 1<<6)

	// Of CTStatus: IPS_CONFIRMED and IPS_DST_NAT.
	Confirmed = named("confirmed", 1<<3)
	DNAT      = named("dnat", 1<<5)

	// Of CTDirection.
	Original = named("original", ctOriginal)
	Reply    = named("reply", ctReply)

	// Of FibSaddrType and FibDaddrType.
	Unicast   = named("unicast", unix.RTN_UNICAST)
	Local     = named("local", unix.RTN_LOCAL)
	Broadcast = named("broadcast", unix.RTN_BROADCAST)
	Multicast = named("multicast", unix.RTN_MULTICAST)

	// Of FibInterface.
	Missing = named("missing", 0)

	// Of EtherType.
	EtherIPv4 = named("ip", unix.ETH_P_IP)
	EtherARP  = named("arp", unix.ETH_P_ARP)
	EtherIPv6 = named("ip6", unix.ETH_P_IPV6)
)

// bounds encodes the first and the last value of v as type d.
func (d *dataType) bounds(v Value) (first, last []byte) {
	if v.prefix.IsValid() {
		return bounds(v.prefix)
	}
	return d.encode(v.first), d.encode(v.last)
}

// operator returns the operator of a match in the syntax of nft, with a space after it.
func operator(invert bool) string {
	if invert {
		return "!= "
	}
	return ""
}

func cmpOp(invert bool) uint32 {
	if invert {
		return unix.NFT_CMP_NEQ
	}
	return unix.NFT_CMP_EQ
}

// lookup matches keys that are in a named set.
type lookup struct {
	key    Key
	set    string
	invert bool
}

// In matches if k is in the named set, whose keys must have the same type.
func (k Key) In(set string) Statement { return lookup{k, set, false} }

// NotIn matches if k is not in the named set.
func (k Key) NotIn(set string) Statement { return lookup{k, set, true} }

// In matches if f is in the named set, whose keys must have the same type.
func (f Field) In(set string) Statement { return Key{f}.In(set) }

// NotIn matches if f is not in the named set.
func (f Field) NotIn(set string) Statement { return Key{f}.NotIn(set) }

func (l lookup) String() string { return fmt.Sprintf("%s %s@%s", l.key, operator(l.invert), l.set) }

func (l lookup) encode(e *encoder) {
	e.load(l.key...)
	e.lookup(l.set, 0, l.invert)
}

// compare matches one value.
type compare struct {
	field  Field
	value  Value
	invert bool
}

// Is matches if f is v, or in v.
func (f Field) Is(v Value) Statement { return compare{f, v, false} }

// IsNot matches if f is not v, which must not be a range.
func (f Field) IsNot(v Value) Statement { return compare{f, v, true} }

func (c compare) String() string {
	return fmt.Sprintf("%s %s%s", c.field.name, operator(c.invert), c.value.text)
}

func (c compare) encode(e *encoder) {
	e.load(c.field)
	first, last := c.field.typ.bounds(c.value)
	switch p := c.value.prefix; {
	case bytes.Equal(first, last):
	case p.IsValid() && p.Bits()%8 != 0:
		e.bitwise(prefixMask(p.Bits(), len(first)), make([]byte, len(first)))
	default:
		e.compare(unix.NFT_CMP_GTE, first)
		e.compare(unix.NFT_CMP_LTE, last)
		return
	}
	e.compare(cmpOp(c.invert), first)
}

// list matches one of several values, which are the elements of an anonymous set.
type list struct {
	field  Field
	values []Value
	invert bool
}

// OneOf matches if f is one of values, which must be in ascending order and must not adjoin.
func (f Field) OneOf(values ...Value) Statement { return list{f, values, false} }

// NoneOf matches if f is none of values.
func (f Field) NoneOf(values ...Value) Statement { return list{f, values, true} }

func (l list) String() string {
	return fmt.Sprintf("%s %s{ %s }", l.field.name, operator(l.invert), join(l.values, ", "))
}

func join(values []Value, separator string) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, v.text)
	}
	return strings.Join(texts, separator)
}

func (l list) encode(e *encoder) {
	e.load(l.field)
	set := AnonymousSet{Type: Type{[maxParts]*dataType{l.field.typ}}}
	var first, last [][]byte
	for _, v := range l.values {
		f, l := set.Type.parts[0].bounds(v)
		first, last = append(first, f), append(last, l)
		set.Interval = set.Interval || !bytes.Equal(f, l)
	}
	// Like nft: an interval set begins with an end, unless its first interval begins at 0.
	if zero := make([]byte, len(first[0])); set.Interval && !bytes.Equal(first[0], zero) {
		set.Elements = append(set.Elements, Element{zero, true})
	}
	for i := range first {
		set.Elements = append(set.Elements, Element{first[i], false})
		if set.Interval {
			set.Elements = append(set.Elements, Element{successor(last[i]), true})
		}
	}
	e.sets = append(e.sets, set)
	e.lookup(AnonymousName, e.FirstSet+uint32(len(e.sets))-1, l.invert)
}

// anyOf matches one of several bits.
type anyOf struct {
	field Field
	bits  []Value
}

// Any matches if f has one of bits.
func (f Field) Any(bits ...Value) Statement { return anyOf{f, bits} }

func (a anyOf) String() string { return a.field.name + " " + join(a.bits, ",") }

func (a anyOf) encode(e *encoder) {
	all := Value{}
	for _, b := range a.bits {
		all.first |= b.first
	}
	masked{a.field, all, Value{}, true}.encode(e)
}

// masked compares some bits of a field.
type masked struct {
	field       Field
	mask, value Value
	invert      bool
}

// MaskIs matches if the bits of f in mask are value.
func (f Field) MaskIs(mask, value Value) Statement { return masked{f, mask, value, false} }

// MaskIsNot matches if the bits of f in mask are not value.
func (f Field) MaskIsNot(mask, value Value) Statement { return masked{f, mask, value, true} }

// Has matches if f, a mark, has a bit of mask.
func (f Field) Has(mask uint32) Statement { return f.MaskIsNot(bits(mask), Number(0)) }

// HasNone matches if f, a mark, has no bit of mask.
func (f Field) HasNone(mask uint32) Statement { return f.MaskIs(bits(mask), Number(0)) }

// HasOnly matches if f, a mark, has of the bits in mask exactly those in set.
func (f Field) HasOnly(mask, set uint32) Statement { return f.MaskIs(bits(mask), bits(set)) }

func bits(n uint32) Value { return named(fmt.Sprintf("%#x", n), n) }

func (m masked) String() string {
	op := "=="
	if m.invert {
		op = "!="
	}
	return fmt.Sprintf("%s & %s %s %s", m.field.name, m.mask.text, op, m.value.text)
}

func (m masked) encode(e *encoder) {
	e.load(m.field)
	d := m.field.typ
	e.bitwise(d.encode(m.mask.first), make([]byte, d.size))
	e.compare(cmpOp(m.invert), d.encode(m.value.first))
}
