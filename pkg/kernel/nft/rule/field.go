package rule

import (
	"encoding/binary"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Field is a property of packets, with the name that it has in nft(8).
type Field struct {
	name  string
	typ   *dataType
	load  func(register uint32) expr.Any
	store func(register uint32) expr.Any // nil if rules cannot set it
	needs []condition                    // that must hold for load to be meaningful
}

// condition requires that a number in the meta data of a packet has a value.
type condition struct {
	key   expr.MetaKey
	value byte
}

func (c condition) encode(e *encoder) {
	e.emit(&expr.Meta{Key: c.key, Register: firstRegister}, &expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: []byte{c.value}})
}

var (
	isIPv4   = condition{expr.MetaKeyNFPROTO, unix.NFPROTO_IPV4}
	isIPv6   = condition{expr.MetaKeyNFPROTO, unix.NFPROTO_IPV6}
	isTCP    = condition{expr.MetaKeyL4PROTO, unix.IPPROTO_TCP}
	isUDP    = condition{expr.MetaKeyL4PROTO, unix.IPPROTO_UDP}
	isICMPv6 = condition{expr.MetaKeyL4PROTO, unix.IPPROTO_ICMPV6}
)

// Fields of packets of any family.
var (
	MetaMark = Field{name: "meta mark", typ: mark, load: meta(expr.MetaKeyMARK), store: setMeta(expr.MetaKeyMARK)}
	NFProto  = Field{name: "meta nfproto", typ: nfProto, load: meta(expr.MetaKeyNFPROTO)}
	L4Proto  = Field{name: "meta l4proto", typ: inetProto, load: meta(expr.MetaKeyL4PROTO)}
	IIF      = Field{name: "iif", typ: ifaceIndex, load: meta(expr.MetaKeyIIF)}
	OIF      = Field{name: "oif", typ: ifaceIndex, load: meta(expr.MetaKeyOIF)}
	IIFName  = Field{name: "iifname", typ: ifname, load: meta(expr.MetaKeyIIFNAME)}
	OIFName  = Field{name: "oifname", typ: ifname, load: meta(expr.MetaKeyOIFNAME)}

	CTState     = Field{name: "ct state", typ: ctBits, load: ct(expr.CtKeySTATE)}
	CTStatus    = Field{name: "ct status", typ: ctBits, load: ct(expr.CtKeySTATUS)}
	CTDirection = Field{name: "ct direction", typ: ctDir, load: ct(expr.CtKeyDIRECTION)}
	CTMark      = Field{name: "ct mark", typ: mark, load: ct(expr.CtKeyMARK), store: setCt(expr.CtKeyMARK)}

	THSport    = Field{name: "th sport", typ: inetService, load: payload(expr.PayloadBaseTransportHeader, 0, 2)}
	THDport    = Field{name: "th dport", typ: inetService, load: payload(expr.PayloadBaseTransportHeader, 2, 2)}
	UDPDport   = Field{name: "udp dport", typ: inetService, load: THDport.load, needs: []condition{isUDP}}
	TCPFlags   = Field{name: "tcp flags", typ: octet, load: payload(expr.PayloadBaseTransportHeader, 13, 1), needs: []condition{isTCP}}
	ICMPv6Type = Field{name: "icmpv6 type", typ: icmpv6Type, load: payload(expr.PayloadBaseTransportHeader, 0, 1), needs: []condition{isIPv6, isICMPv6}}

	FibSaddrType = Field{name: "fib saddr type", typ: fibAddrType, load: fib(expr.Fib{FlagSADDR: true, ResultADDRTYPE: true})}
	FibDaddrType = Field{name: "fib daddr type", typ: fibAddrType, load: fib(expr.Fib{FlagDADDR: true, ResultADDRTYPE: true})}
	// FibInterface is whether there is a route to the source through the input interface.
	FibInterface = Field{name: "fib saddr . iif oif", typ: fibPresent, load: fib(expr.Fib{FlagSADDR: true, FlagIIF: true, FlagPRESENT: true, ResultOIF: true})}

	// EtherType is for tables of the family bridge.
	EtherType = Field{name: "ether type", typ: etherType, load: payload(expr.PayloadBaseLLHeader, 12, 2)}
)

// Family has the fields of packets of an address family.
type Family struct {
	Saddr, Daddr Field
	// Proto is the protocol in the IP header. In a packet with extension headers it is the type of the
	// first one.
	Proto Field
	// OriginalSaddr and ReplySaddr are the sources of the connection's two directions.
	OriginalSaddr, ReplySaddr Field
}

// The two families.
var (
	IPv4 = Family{
		Saddr:         Field{name: "ip saddr", typ: ipv4Addr, load: network(12, 4), needs: []condition{isIPv4}},
		Daddr:         Field{name: "ip daddr", typ: ipv4Addr, load: network(16, 4), needs: []condition{isIPv4}},
		Proto:         Field{name: "ip protocol", typ: inetProto, load: network(9, 1), needs: []condition{isIPv4}},
		OriginalSaddr: Field{name: "ct original ip saddr", typ: ipv4Addr, load: tuple(ctSourceIPv4, ctOriginal)},
		ReplySaddr:    Field{name: "ct reply ip saddr", typ: ipv4Addr, load: tuple(ctSourceIPv4, ctReply)},
	}
	IPv6 = Family{
		Saddr:         Field{name: "ip6 saddr", typ: ipv6Addr, load: network(8, 16), needs: []condition{isIPv6}},
		Daddr:         Field{name: "ip6 daddr", typ: ipv6Addr, load: network(24, 16), needs: []condition{isIPv6}},
		Proto:         Field{name: "ip6 nexthdr", typ: inetProto, load: network(6, 1), needs: []condition{isIPv6}},
		OriginalSaddr: Field{name: "ct original ip6 saddr", typ: ipv6Addr, load: tuple(ctSourceIPv6, ctOriginal)},
		ReplySaddr:    Field{name: "ct reply ip6 saddr", typ: ipv6Addr, load: tuple(ctSourceIPv6, ctReply)},
	}
	IPv6HopLimit = Field{name: "ip6 hoplimit", typ: octet, load: network(7, 1), needs: []condition{isIPv6}}
)

// Key is a concatenation of fields, as the keys of sets have them.
type Key []Field

// String returns k in the syntax of nft.
func (k Key) String() string {
	var names []string
	for _, f := range k {
		names = append(names, f.name)
	}
	return strings.Join(names, " . ")
}

func meta(key expr.MetaKey) func(uint32) expr.Any {
	return func(register uint32) expr.Any { return &expr.Meta{Key: key, Register: register} }
}

func setMeta(key expr.MetaKey) func(uint32) expr.Any {
	return func(register uint32) expr.Any {
		return &expr.Meta{Key: key, Register: register, SourceRegister: true}
	}
}

func ct(key expr.CtKey) func(uint32) expr.Any {
	return func(register uint32) expr.Any { return &expr.Ct{Key: key, Register: register} }
}

func setCt(key expr.CtKey) func(uint32) expr.Any {
	return func(register uint32) expr.Any {
		return &expr.Ct{Key: key, Register: register, SourceRegister: true}
	}
}

func network(offset, length uint32) func(uint32) expr.Any {
	return payload(expr.PayloadBaseNetworkHeader, offset, length)
}

func payload(base expr.PayloadBase, offset, length uint32) func(uint32) expr.Any {
	return func(register uint32) expr.Any {
		return &expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: length}
	}
}

func fib(lookup expr.Fib) func(uint32) expr.Any {
	return func(register uint32) expr.Any {
		lookup := lookup
		lookup.Register = register
		return &lookup
	}
}

// Keys of linux/netfilter/nf_tables.h and directions of linux/netfilter/nf_conntrack_tuple_common.h.
const (
	ctSourceIPv4 = 19 // NFT_CT_SRC_IP
	ctSourceIPv6 = 21 // NFT_CT_SRC_IP6
	ctOriginal   = 0
	ctReply      = 1
)

// ctAddr loads an address of a connection. expr.Ct does not encode the direction of these keys.
type ctAddr struct {
	expr.Any                 // only makes this type one
	key, direction, register uint32
}

func tuple(key, direction uint32) func(uint32) expr.Any {
	return func(register uint32) expr.Any {
		return ctAddr{Any: &expr.Ct{}, key: key, direction: direction, register: register}
	}
}

func marshal(family byte, x expr.Any) ([]byte, error) {
	c, ok := x.(ctAddr)
	if !ok {
		return expr.Marshal(family, x)
	}
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	data, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_CT_KEY, Data: number(c.key)},
		{Type: unix.NFTA_CT_DREG, Data: number(c.register)},
		{Type: unix.NFTA_CT_DIRECTION, Data: []byte{byte(c.direction)}},
	})
	if err != nil {
		return nil, err
	}
	return netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_EXPR_NAME, Data: []byte("ct\x00")},
		{Type: unix.NLA_F_NESTED | unix.NFTA_EXPR_DATA, Data: data},
	})
}
