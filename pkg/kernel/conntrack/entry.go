package conntrack

import (
	"encoding/binary"
	"net/netip"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// Attributes of linux/netfilter/nfnetlink_conntrack.h.
const (
	attrOriginal = 1
	attrReply    = 2
	attrStatus   = 3
	attrProtocol = 4 // CTA_PROTOINFO
	attrNATSrc   = 6
	attrTimeout  = 7
	attrMark     = 8
	attrCounters = 9  // of the original direction
	attrReplies  = 10 // counters of the reply direction
	attrID       = 12
	attrNATDst   = 13
	attrZone     = 18
	attrMarkMask = 21

	attrTupleIP    = 1
	attrTupleProto = 2

	attrIPv4Src = 1
	attrIPv4Dst = 2
	attrIPv6Src = 3
	attrIPv6Dst = 4

	attrProtoNum = 1
	attrSrcPort  = 2
	attrDstPort  = 3

	attrCounterBytes = 2
)

// Bits of the status, of linux/netfilter/nf_conntrack_common.h.
const (
	statusExpected  = 1 << 0 // IPS_EXPECTED: a helper expected the connection
	statusSeenReply = 1 << 1
	statusAssured   = 1 << 2
	statusConfirmed = 1 << 3 // set in all entries of the table

	statusOffload   = 1 << 14
	statusOffloaded = statusOffload | 1<<15 // by the kernel, by hardware
)

const nfgenHeaderLen = 4 // struct nfgenmsg: family, version, resource

// entry is a connection as the kernel tracks it. It points into the message it
// was decoded from.
type entry struct {
	original sender // of the first packet, as it arrived
	reply    sender // of the replies, as they arrive
	mark     uint32
	status   uint32
	bytes    uint64 // in both directions, 0 if the kernel does not count them
	tcpState byte   // 0 for other protocols
	pickedUp bool   // the kernel began to track it in the middle, so either end may have opened it
	key      key
	replies  []byte // content of the attribute CTA_TUPLE_REPLY
}

// key identifies a connection in the kernel's own encoding, which contains more than
// addresses and ports: ICMP identifiers, GRE keys, zones.
type key struct {
	family uint8
	tuple  []byte // content of the attribute CTA_TUPLE_ORIG
	zone   []byte // content of CTA_ZONE, empty in the default zone
	id     []byte // content of CTA_ID: distinguishes the entry from a later one with the same tuple
}

// sender is the source of one direction of a connection, and where it sends to.
type sender struct {
	addr, to     netip.Addr
	port, toPort uint16
	hasPorts     bool // the kernel tracks ports of this protocol
	proto        packet.Proto
}

// offloaded reports whether a flowtable forwards packets of the connection past all hooks,
// whatever its mark.
func (e entry) offloaded() bool { return e.status&statusOffloaded != 0 }

// live reports whether packets of the connection are likely to follow: an established TCP connection,
// or packets of another protocol in both directions for a while. Finished connections keep their
// entries for minutes.
func (e entry) live() bool {
	if e.original.proto == packet.TCP {
		return e.tcpState == tcpEstablished
	}
	return e.status&statusAssured != 0
}

// first returns the packet that opened the connection, as it is between DNAT and
// SNAT: with the source of the original direction, and with the source of replies
// as its destination. It reports false if the entry lacks ports that the protocol
// has: SCTP, on kernels that do not track its ports.
func (e entry) first() (packet.Packet, bool) {
	src, dst := e.original.addr, e.reply.addr
	if !src.IsValid() || !dst.IsValid() || src.Is4() != dst.Is4() {
		return packet.Packet{}, false
	}
	p := packet.Packet{Src: netip.AddrPortFrom(src, 0), Dst: netip.AddrPortFrom(dst, 0), Proto: e.original.proto}
	if p.Proto.HasPorts() {
		if !e.original.hasPorts || !e.reply.hasPorts {
			return packet.Packet{}, false
		}
		p.Src = netip.AddrPortFrom(src, e.original.port)
		p.Dst = netip.AddrPortFrom(dst, e.reply.port)
	}
	return p, true
}

// decodeEntry decodes the data of a message about a connection. It reports false
// if the message is malformed.
func decodeEntry(data []byte) (e entry, ok bool) {
	if len(data) < nfgenHeaderLen {
		return e, false
	}
	e.key.family = data[0]
	ok = nlattr.Each(data[nfgenHeaderLen:], func(typ uint16, value []byte) bool {
		switch typ {
		case attrOriginal:
			e.key.tuple = value
			return e.original.decode(value)
		case attrReply:
			e.replies = value
			return e.reply.decode(value)
		case attrStatus:
			return getUint32(value, &e.status)
		case attrMark:
			return getUint32(value, &e.mark)
		case attrCounters, attrReplies:
			return nlattr.Each(value, e.addCounter)
		case attrProtocol:
			var ok bool
			e.pickedUp, e.tcpState, ok = decodeProtocol(value)
			return ok
		case attrZone:
			e.key.zone = value
		case attrID:
			e.key.id = value
		}
		return true
	})
	return e, ok && e.original.addr.IsValid() && e.reply.addr.IsValid()
}

// decodeProtocol returns the state of a TCP connection from info, the content of CTA_PROTOINFO, and
// whether the kernel picked it up in the middle: its flags differ from those of a connection seen from the
// first packet. A flowtable adds the flag BE_LIBERAL, so a rare connection without window scaling
// looks picked up after it was offloaded.
func decodeProtocol(info []byte) (pickedUp bool, state byte, ok bool) {
	const known = tcpWindowScale | tcpPickedUp
	ends := 0
	ok = nlattr.Each(info, func(typ uint16, value []byte) bool {
		if typ != attrProtocolTCP {
			return true
		}
		return nlattr.Each(value, func(typ uint16, value []byte) bool {
			switch {
			case typ == attrTCPState && len(value) > 0:
				state = value[0]
			case typ != attrTCPFlagsOriginal && typ != attrTCPFlagsReply:
			case len(value) < 2:
				return false
			case value[0]&known == tcpPickedUp:
				ends++
			}
			return true
		})
	})
	return ends == 2, state, ok
}

func (e *entry) addCounter(typ uint16, value []byte) bool {
	if typ != attrCounterBytes {
		return true
	}
	if len(value) < 8 {
		return false
	}
	e.bytes += binary.BigEndian.Uint64(value)
	return true
}

func (s *sender) decode(b []byte) bool {
	return nlattr.Each(b, func(typ uint16, value []byte) bool {
		switch typ {
		case attrTupleIP:
			return nlattr.Each(value, s.setIP)
		case attrTupleProto:
			return nlattr.Each(value, s.setProto)
		}
		return true
	})
}

func (s *sender) setIP(typ uint16, value []byte) bool {
	addr, ok := netip.AddrFromSlice(value)
	switch typ {
	case attrIPv4Src, attrIPv6Src:
		s.addr = addr.Unmap() // like package packet
	case attrIPv4Dst, attrIPv6Dst:
		s.to = addr.Unmap()
	default:
		return true
	}
	return ok && addr.Is6() == (typ == attrIPv6Src || typ == attrIPv6Dst)
}

func (s *sender) setProto(typ uint16, value []byte) bool {
	switch {
	case typ == attrProtoNum && len(value) > 0:
		s.proto = packet.Proto(value[0])
	case typ == attrSrcPort && len(value) > 1:
		s.port, s.hasPorts = binary.BigEndian.Uint16(value), true
	case typ == attrDstPort && len(value) > 1:
		s.toPort = binary.BigEndian.Uint16(value)
	default:
		return typ == 0 || typ > attrDstPort // a known attribute without its value is malformed
	}
	return true
}

func getUint32(value []byte, to *uint32) bool {
	if len(value) < 4 {
		return false
	}
	*to = binary.BigEndian.Uint32(value)
	return true
}
