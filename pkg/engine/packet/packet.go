// Package packet parses IP packets for policy: protocol, addresses and ports. To follow application
// protocols it also parses the payload of TCP segments and UDP datagrams. It keeps no state, does
// not allocate, and treats every byte as chosen by an attacker.
package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Proto is an IP protocol number as assigned by IANA.
type Proto uint8

// The protocols with a name here. Other numbers are evaluated as they are.
const (
	ICMP   Proto = 1
	TCP    Proto = 6
	UDP    Proto = 17
	ICMPv6 Proto = 58
	SCTP   Proto = 132

	// Unknown stands for a packet whose transport protocol or ports could not be read: a later
	// fragment, or a truncated header. IANA reserves the number (255), so no real protocol has it.
	Unknown Proto = 255
)

// IPv6 extension headers that carry a next header (RFC 8200, RFC 4302,
// RFC 5533, RFC 6275, RFC 7401). Everything else ends the walk.
const (
	hopByHop        Proto = 0
	routing         Proto = 43
	fragment        Proto = 44
	authentication  Proto = 51
	noNextHeader    Proto = 59
	destinationOpts Proto = 60
	mobility        Proto = 135
	hostIdentity    Proto = 139
	shim6           Proto = 140
)

// Protocols that encrypt or compress the transport header (RFC 4303, RFC 3173, RFC 5840, RFC 5858).
const (
	esp           Proto = 50
	ipComp        Proto = 108
	wrappedESP    Proto = 141
	robustHeaders Proto = 142

	// lastAssigned is the highest number that IANA has assigned. Higher numbers may be extension
	// headers that are not known here.
	lastAssigned Proto = 147
)

// String returns the usual name, or the number.
func (p Proto) String() string {
	switch p {
	case ICMP:
		return "ICMP"
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case ICMPv6:
		return "ICMPv6"
	case SCTP:
		return "SCTP"
	case Unknown:
		return "unknown"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// HasPorts reports whether packets of this protocol have ports that policies can name. It is false
// for Unknown.
func (p Proto) HasPorts() bool { return p == TCP || p == UDP || p == SCTP }

// Hidden reports whether the transport protocol behind p cannot be read: it may be any, with any
// ports. Policies must assume the worst about such a packet. A known protocol without ports, such
// as ICMP, is not hidden.
func (p Proto) Hidden() bool {
	switch p {
	case esp, ipComp, wrappedESP, robustHeaders:
		return true
	}
	return p > lastAssigned
}

// Packet is the part of an IP packet that policies evaluate. Src and Dst are as on the wire, after
// DNAT. The addresses are never IPv4-mapped IPv6 ones. The ports are zero unless Proto.HasPorts.
type Packet struct {
	Src, Dst netip.AddrPort
	Proto    Proto
}

// Swapped returns a packet from the destination of p to its source.
func (p Packet) Swapped() Packet { return Packet{Src: p.Dst, Dst: p.Src, Proto: p.Proto} }

// String returns the packet as "TCP 10.0.0.1:40000 -> 10.0.0.2:80".
func (p Packet) String() string {
	if !p.Proto.HasPorts() {
		return fmt.Sprintf("%v %v -> %v", p.Proto, p.Src.Addr(), p.Dst.Addr())
	}
	return fmt.Sprintf("%v %v -> %v", p.Proto, p.Src, p.Dst)
}

// Errors of Parse. The packet has no addresses to evaluate.
var (
	ErrTruncated = errors.New("packet is shorter than its IP header")
	ErrVersion   = errors.New("packet is neither IPv4 nor IPv6")
	ErrHeader    = errors.New("IPv4 header length is below 20 bytes")
)

// Parse reads the packet that begins at b[0] with its IP header. The packet may be truncated. Bytes
// of b beyond the length in the IP header are not part of the packet and are not read; the kernel
// sets this length to 0 for packets that are too long for the field. It is an error if the
// addresses cannot be read. If the transport header cannot be read, the protocol is Unknown.
func Parse(b []byte) (Packet, error) {
	h, err := headers(b)
	if err != nil {
		return Packet{}, err
	}
	return transport(&h, wholeHeader), nil
}

// ip holds the fields of the headers before the transport header.
type ip struct {
	src, dst netip.Addr
	proto    Proto
	rest     []byte // from the transport header on
}

func headers(b []byte) (ip, error) {
	if len(b) == 0 {
		return ip{}, ErrTruncated
	}
	switch b[0] >> 4 {
	case 4:
		return parse4(b)
	case 6:
		return parse6(b)
	}
	return ip{}, ErrVersion
}

func parse4(b []byte) (ip, error) {
	const minHeader = 20
	if len(b) < minHeader {
		return ip{}, ErrTruncated
	}
	header := int(b[0]&0x0f) * 4
	if header < minHeader {
		return ip{}, ErrHeader
	}
	if len(b) < header {
		return ip{}, ErrTruncated
	}
	src := netip.AddrFrom4([4]byte(b[12:16]))
	dst := netip.AddrFrom4([4]byte(b[16:20]))
	proto, rest := Proto(b[9]), payload(b, int(binary.BigEndian.Uint16(b[2:4])), header)
	if offset := binary.BigEndian.Uint16(b[6:8]) & 0x1fff; offset != 0 {
		rest = nil // a later fragment: payload, not ports
	}
	if proto == authentication {
		proto, rest = walk(proto, rest)
	}
	return ip{src, dst, proto, rest}, nil
}

// payload returns the bytes of b after the header, up to a total length of total.
func payload(b []byte, total, header int) []byte {
	if total == 0 || total > len(b) {
		total = len(b)
	}
	return b[header:max(header, total)]
}

func parse6(b []byte) (ip, error) {
	const header = 40
	if len(b) < header {
		return ip{}, ErrTruncated
	}
	// Unmap: rules must see ::ffff:10.0.0.1 as 10.0.0.1. Otherwise the other notation would bypass
	// an ipBlock.
	src := netip.AddrFrom16([16]byte(b[8:24])).Unmap()
	dst := netip.AddrFrom16([16]byte(b[24:40])).Unmap()
	total := int(binary.BigEndian.Uint16(b[4:6]))
	if total != 0 {
		total += header
	}
	proto, rest := walk(Proto(b[6]), payload(b, total, header))
	return ip{src, dst, proto, rest}, nil
}

// walk follows extension headers from next, which begins at b[0], to the transport header. It
// terminates because it consumes at least eight bytes per header.
func walk(next Proto, b []byte) (Proto, []byte) {
	for {
		var length int
		switch next {
		case hopByHop, routing, destinationOpts, mobility, hostIdentity, shim6:
			if len(b) < 8 {
				return Unknown, nil
			}
			length = (int(b[1]) + 1) * 8
		case authentication:
			if len(b) < 8 {
				return Unknown, nil
			}
			length = max((int(b[1])+2)*4, 8)
		case fragment:
			if len(b) < 8 {
				return Unknown, nil
			}
			if binary.BigEndian.Uint16(b[2:4])&0xfff8 != 0 {
				return Unknown, nil // a later fragment
			}
			length = 8
		default:
			return next, b
		}
		if len(b) < length {
			return Unknown, nil
		}
		next, b = Proto(b[0]), b[length:]
	}
}

// wholeHeader requires the protocol's minimum header length.
const wholeHeader = 0

// transport adds the ports. A header shorter than enough bytes or than its protocol's minimum is
// truncated or forged, and its ports are not trusted.
func transport(h *ip, enough int) Packet {
	proto, b := h.proto, h.rest
	var minHeader int
	switch proto {
	case TCP:
		minHeader = 20
	case UDP:
		minHeader = 8
	case SCTP:
		minHeader = 12
	}
	if enough != wholeHeader {
		minHeader = min(minHeader, enough)
	}
	if len(b) < minHeader {
		proto = Unknown
	}
	var srcPort, dstPort uint16
	if proto.HasPorts() {
		srcPort = binary.BigEndian.Uint16(b[0:2])
		dstPort = binary.BigEndian.Uint16(b[2:4])
	}
	return Packet{
		Src:   netip.AddrPortFrom(h.src, srcPort),
		Dst:   netip.AddrPortFrom(h.dst, dstPort),
		Proto: proto,
	}
}
