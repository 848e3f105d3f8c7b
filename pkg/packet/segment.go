package packet

import "encoding/binary"

// Segment is a TCP segment or a UDP datagram, whole.
type Segment struct {
	Packet
	// Seq is the sequence number of the segment's first byte and SYN is set if
	// it opens a connection; then Payload begins at Seq+1. Both are of TCP.
	Seq uint32
	SYN bool
	// Payload is what the application sent. It is a part of the bytes that were
	// parsed, and valid as long as they are.
	Payload []byte
}

// ParseSegment reads the TCP segment or UDP datagram that begins at b[0] with its
// IP header. Unlike Parse it wants all of it: ok is false for every other
// protocol, for fragments, behind IPv6 extension headers, and where a length in
// a header is not what b has. Checksums are not looked at.
func ParseSegment(b []byte) (s Segment, ok bool) {
	p, err := Parse(b)
	if err != nil {
		return Segment{}, false
	}
	transport, ok := whole(b, p.Proto)
	if !ok {
		return Segment{}, false
	}
	s.Packet = p
	switch p.Proto {
	case TCP:
		ok = s.readTCP(transport)
	case UDP:
		ok = s.readUDP(transport)
	default:
		ok = false
	}
	return s, ok
}

func (s *Segment) readTCP(b []byte) bool {
	const minHeader, syn = 20, 0x02
	if len(b) < minHeader {
		return false
	}
	header := int(b[12]>>4) * 4
	if header < minHeader || header > len(b) {
		return false
	}
	s.Seq = binary.BigEndian.Uint32(b[4:8])
	s.SYN = b[13]&syn != 0
	s.Payload = b[header:]
	return true
}

func (s *Segment) readUDP(b []byte) bool {
	const header = 8
	if len(b) < header {
		return false
	}
	// A datagram may be shorter than what IP carries, never longer.
	length := int(binary.BigEndian.Uint16(b[4:6]))
	if length < header || length > len(b) {
		return false
	}
	s.Payload = b[header:length]
	return true
}

// whole returns what follows the IP header of the packet b, which Parse has
// read and whose protocol is proto: as long as the header states, no fragment and no
// extension header.
func whole(b []byte, proto Proto) ([]byte, bool) {
	var header, total int
	if b[0]>>4 == 4 {
		const moreFragments = 0x20
		if b[6]&moreFragments != 0 {
			return nil, false
		}
		header = int(b[0]&0x0f) * 4
		total = int(binary.BigEndian.Uint16(b[2:4]))
	} else {
		if Proto(b[6]) != proto {
			return nil, false
		}
		header = 40
		total = header + int(binary.BigEndian.Uint16(b[4:6]))
	}
	if total < header || total > len(b) {
		return nil, false
	}
	return b[header:total], true
}
