package rule

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Field is a property of packets, with the name that it has in nft(8).
type Field struct {
	name  string
	typ   *dataType
	load  func(e *encoder, register uint32)
	store func(e *encoder) // of the first register; nil if rules cannot set it
	needs []condition      // that must hold for load to be meaningful
}

// condition requires that a number in the meta data of a packet has a value.
type condition struct {
	key   uint32 // of an expression meta
	value byte
}

func (c condition) encode(e *encoder) {
	meta(c.key)(e, firstRegister)
	e.compare(unix.NFT_CMP_EQ, []byte{c.value})
}

var (
	isIPv4   = condition{unix.NFT_META_NFPROTO, unix.NFPROTO_IPV4}
	isIPv6   = condition{unix.NFT_META_NFPROTO, unix.NFPROTO_IPV6}
	isTCP    = condition{unix.NFT_META_L4PROTO, unix.IPPROTO_TCP}
	isUDP    = condition{unix.NFT_META_L4PROTO, unix.IPPROTO_UDP}
	isICMPv6 = condition{unix.NFT_META_L4PROTO, unix.IPPROTO_ICMPV6}
)

// Fields of packets of any family.
var (
	MetaMark = Field{name: "meta mark", typ: mark, load: meta(unix.NFT_META_MARK), store: setMeta(unix.NFT_META_MARK)}
	NFProto  = Field{name: "meta nfproto", typ: nfProto, load: meta(unix.NFT_META_NFPROTO)}
	L4Proto  = Field{name: "meta l4proto", typ: inetProto, load: meta(unix.NFT_META_L4PROTO)}
	IIF      = Field{name: "iif", typ: ifaceIndex, load: meta(unix.NFT_META_IIF)}
	OIF      = Field{name: "oif", typ: ifaceIndex, load: meta(unix.NFT_META_OIF)}
	IIFName  = Field{name: "iifname", typ: ifname, load: meta(unix.NFT_META_IIFNAME)}
	OIFName  = Field{name: "oifname", typ: ifname, load: meta(unix.NFT_META_OIFNAME)}

	CTState     = Field{name: "ct state", typ: ctBits, load: ct(unix.NFT_CT_STATE)}
	CTStatus    = Field{name: "ct status", typ: ctBits, load: ct(unix.NFT_CT_STATUS)}
	CTDirection = Field{name: "ct direction", typ: ctDir, load: ct(unix.NFT_CT_DIRECTION)}
	CTMark      = Field{name: "ct mark", typ: mark, load: ct(unix.NFT_CT_MARK), store: setCt(unix.NFT_CT_MARK)}

	THSport    = Field{name: "th sport", typ: inetService, load: payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2)}
	THDport    = Field{name: "th dport", typ: inetService, load: payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2)}
	UDPDport   = Field{name: "udp dport", typ: inetService, load: THDport.load, needs: []condition{isUDP}}
	TCPFlags   = Field{name: "tcp flags", typ: octet, load: payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1), needs: []condition{isTCP}}
	ICMPv6Type = Field{name: "icmpv6 type", typ: icmpv6Type, load: payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1), needs: []condition{isIPv6, isICMPv6}}

	FibSaddrType = Field{name: "fib saddr type", typ: fibAddrType, load: fib(unix.NFTA_FIB_F_SADDR, unix.NFT_FIB_RESULT_ADDRTYPE)}
	FibDaddrType = Field{name: "fib daddr type", typ: fibAddrType, load: fib(unix.NFTA_FIB_F_DADDR, unix.NFT_FIB_RESULT_ADDRTYPE)}
	// FibInterface is whether there is a route to the source through the input interface.
	FibInterface = Field{name: "fib saddr . iif oif", typ: fibPresent, load: fib(unix.NFTA_FIB_F_SADDR|unix.NFTA_FIB_F_IIF|unix.NFTA_FIB_F_PRESENT, unix.NFT_FIB_RESULT_OIF)}

	// EtherType is for tables of the family bridge.
	EtherType = Field{name: "ether type", typ: etherType, load: payload(unix.NFT_PAYLOAD_LL_HEADER, 12, 2)}
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

func meta(key uint32) func(*encoder, uint32) {
	return func(e *encoder, register uint32) {
		e.expression("meta", number{unix.NFTA_META_KEY, key}, number{unix.NFTA_META_DREG, register})
	}
}

func setMeta(key uint32) func(*encoder) {
	return func(e *encoder) {
		e.expression("meta", number{unix.NFTA_META_KEY, key}, number{unix.NFTA_META_SREG, firstRegister})
	}
}

func ct(key uint32) func(*encoder, uint32) {
	return func(e *encoder, register uint32) {
		e.expression("ct", number{unix.NFTA_CT_KEY, key}, number{unix.NFTA_CT_DREG, register})
	}
}

func setCt(key uint32) func(*encoder) {
	return func(e *encoder) {
		e.expression("ct", number{unix.NFTA_CT_KEY, key}, number{unix.NFTA_CT_SREG, firstRegister})
	}
}

// Keys of linux/netfilter/nf_tables.h and directions of linux/netfilter/nf_conntrack_tuple_common.h.
const (
	ctSourceIPv4 = 19 // NFT_CT_SRC_IP
	ctSourceIPv6 = 21 // NFT_CT_SRC_IP6
	ctOriginal   = 0
	ctReply      = 1
)

// tuple loads an address of one direction of the connection.
func tuple(key uint32, direction byte) func(*encoder, uint32) {
	return func(e *encoder, register uint32) {
		e.begin("ct", number{unix.NFTA_CT_KEY, key}, number{unix.NFTA_CT_DREG, register})
		e.Bytes(unix.NFTA_CT_DIRECTION, []byte{direction})
		e.end()
	}
}

func network(offset, length uint32) func(*encoder, uint32) {
	return payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, length)
}

func payload(header, offset, length uint32) func(*encoder, uint32) {
	return func(e *encoder, register uint32) {
		e.expression("payload", number{unix.NFTA_PAYLOAD_DREG, register}, number{unix.NFTA_PAYLOAD_BASE, header},
			number{unix.NFTA_PAYLOAD_OFFSET, offset}, number{unix.NFTA_PAYLOAD_LEN, length})
	}
}

func fib(flags, result uint32) func(*encoder, uint32) {
	return func(e *encoder, register uint32) {
		e.expression("fib", number{unix.NFTA_FIB_DREG, register}, number{unix.NFTA_FIB_FLAGS, flags}, number{unix.NFTA_FIB_RESULT, result})
	}
}
