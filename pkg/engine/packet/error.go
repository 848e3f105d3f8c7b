package packet

import "encoding/binary"

// ParseError reads the packet quoted in the ICMP error that begins at b[0] with its IP header. An
// error quotes only the beginning of that packet, so the ports are read even if the rest of the
// transport header is missing. ok is false for other packets, for errors in fragments or behind
// IPv6 extension headers, and for redirects.
func ParseError(b []byte) (about Packet, ok bool) {
	p, err := Parse(b)
	if err != nil {
		return Packet{}, false
	}
	const icmpHeader, ports = 8, 4
	var header int
	switch {
	case p.Proto == ICMP && b[0]>>4 == 4:
		header = int(b[0]&0x0f) * 4
	case p.Proto == ICMPv6 && b[0]>>4 == 6 && Proto(b[6]) == ICMPv6:
		header = 40
	default:
		return Packet{}, false
	}
	fragmented := p.Proto == ICMP && binary.BigEndian.Uint16(b[6:8])&0x3fff != 0
	if fragmented || len(b) < header+icmpHeader || !isError(p.Proto, b[header]) {
		return Packet{}, false
	}
	inner := b[header+icmpHeader:]
	h, err := headers(inner)
	if err != nil || inner[0]>>4 != b[0]>>4 {
		return Packet{}, false
	}
	return transport(&h, ports), true
}

// isError reports whether ICMP messages of this type quote a packet.
func isError(proto Proto, kind byte) bool {
	if proto == ICMPv6 {
		return kind >= 1 && kind <= 4
	}
	switch kind {
	case 3, 4, 11, 12: // unreachable, source quench, time exceeded, parameter problem
		return true
	}
	return false
}
