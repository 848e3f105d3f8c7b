package rule

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// selector is a property of packets that rules match.
type selector struct {
	key  *dataType
	load func(register uint32) expr.Any
	// store is nil if rules cannot set it.
	store func(register uint32) expr.Any
	// needs are the conditions that must hold for load to be meaningful.
	needs []condition
	// replaces is a selector that nft regards as compared by this one, empty if none.
	replaces string
}

// condition requires that a selector has a value.
type condition struct{ selector, value string }

var (
	isIPv4   = []condition{{"meta nfproto", "ipv4"}}
	isIPv6   = []condition{{"meta nfproto", "ipv6"}}
	isICMPv6 = []condition{{"meta nfproto", "ipv6"}, {"meta l4proto", "icmpv6"}}
	isTCP    = []condition{{"meta l4proto", "tcp"}}
	isUDP    = []condition{{"meta l4proto", "udp"}}
)

// selectors are the selectors of each family.
var selectors = map[knftables.Family]map[string]selector{
	knftables.InetFamily: {
		"meta mark":    {key: mark, load: meta(expr.MetaKeyMARK), store: setMeta(expr.MetaKeyMARK)},
		"meta nfproto": {key: nfProto, load: meta(expr.MetaKeyNFPROTO)},
		"meta l4proto": {key: inetProto, load: meta(expr.MetaKeyL4PROTO)},
		"iif":          {key: ifaceIndex, load: meta(expr.MetaKeyIIF)},
		"oif":          {key: ifaceIndex, load: meta(expr.MetaKeyOIF)},
		"iifname":      {key: ifname, load: meta(expr.MetaKeyIIFNAME)},
		"oifname":      {key: ifname, load: meta(expr.MetaKeyOIFNAME)},

		"ct state":     {key: ctState, load: ct(expr.CtKeySTATE)},
		"ct status":    {key: ctStatus, load: ct(expr.CtKeySTATUS)},
		"ct direction": {key: ctDir, load: ct(expr.CtKeyDIRECTION)},
		"ct mark":      {key: mark, load: ct(expr.CtKeyMARK), store: setCt(expr.CtKeyMARK)},

		"ct original ip saddr":  {key: ipv4Addr, load: tuple(ctSourceIPv4, ctOriginal)},
		"ct original ip6 saddr": {key: ipv6Addr, load: tuple(ctSourceIPv6, ctOriginal)},
		"ct reply ip saddr":     {key: ipv4Addr, load: tuple(ctSourceIPv4, ctReply)},
		"ct reply ip6 saddr":    {key: ipv6Addr, load: tuple(ctSourceIPv6, ctReply)},

		"ip protocol":  {key: inetProto, load: network(9, 1), needs: isIPv4, replaces: "meta l4proto"},
		"ip saddr":     {key: ipv4Addr, load: network(12, 4), needs: isIPv4},
		"ip daddr":     {key: ipv4Addr, load: network(16, 4), needs: isIPv4},
		"ip6 nexthdr":  {key: inetProto, load: network(6, 1), needs: isIPv6, replaces: "meta l4proto"},
		"ip6 hoplimit": {key: integer, load: network(7, 1), needs: isIPv6},
		"ip6 saddr":    {key: ipv6Addr, load: network(8, 16), needs: isIPv6},
		"ip6 daddr":    {key: ipv6Addr, load: network(24, 16), needs: isIPv6},

		"icmpv6 type": {key: icmpv6Type, load: transport(0, 1), needs: isICMPv6},
		"tcp flags":   {key: tcpFlag, load: transport(13, 1), needs: isTCP},
		"udp dport":   {key: inetService, load: transport(2, 2), needs: isUDP},
		"th sport":    {key: inetService, load: transport(0, 2)},
		"th dport":    {key: inetService, load: transport(2, 2)},

		"fib saddr type":      {key: fibAddrType, load: fib(expr.Fib{FlagSADDR: true, ResultADDRTYPE: true})},
		"fib daddr type":      {key: fibAddrType, load: fib(expr.Fib{FlagDADDR: true, ResultADDRTYPE: true})},
		"fib saddr . iif oif": {key: fibPresent, load: fib(expr.Fib{FlagSADDR: true, FlagIIF: true, FlagPRESENT: true, ResultOIF: true})},
	},
	knftables.BridgeFamily: {
		"iifname":    {key: ifname, load: meta(expr.MetaKeyIIFNAME)},
		"ether type": {key: etherType, load: link(12, 2)},
	},
}

// maxWords is the number of words of the longest selector.
const maxWords = 5

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

func tuple(key, direction uint32) func(uint32) expr.Any {
	return func(register uint32) expr.Any {
		return ctAddr{Any: &expr.Ct{}, key: key, direction: direction, register: register}
	}
}

func link(offset, length uint32) func(uint32) expr.Any {
	return payload(expr.PayloadBaseLLHeader, offset, length)
}

func network(offset, length uint32) func(uint32) expr.Any {
	return payload(expr.PayloadBaseNetworkHeader, offset, length)
}

func transport(offset, length uint32) func(uint32) expr.Any {
	return payload(expr.PayloadBaseTransportHeader, offset, length)
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

// register returns the number of the register at an offset in words. Offsets that are multiples
// of four have the numbers of the 16-byte registers, as in nft.
func register(words int) uint32 {
	if words%4 == 0 {
		return uint32(unix.NFT_REG_1 + words/4)
	}
	return uint32(unix.NFT_REG32_00 + words)
}
