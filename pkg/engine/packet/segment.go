package packet

import "encoding/binary"

// Segment is a complete TCP segment or UDP datagram.
type Segment struct {
	Packet
	// Seq is the TCP sequence number of the segment's first byte. SYN is the TCP flag; if it is
	// set, Payload begins at Seq+1.
	Seq uint32
	SYN bool
	// Payload is the data of the application. It aliases the parsed bytes.
	Payload []byte
}

// ParseSegment reads the TCP segment or UDP datagram that begins at b[0] with its IP header. Unlike
// Parse it requires a complete packet: ok is false for other protocols, for fragments, behind IPv6
// extension headers, and if a length in a header disagrees with b. It does not verify checksums.
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
	// A datagram may be shorter than the IP payload, but never longer.
	length := int(binary.BigEndian.Uint16(b[4:6]))
	if length < header || length > len(b) {
		return false
	}
	s.Payload = b[header:length]
	return true
}

// whole returns the bytes after the IP header of b, which Parse has read with protocol proto. ok is
// false for fragments, for extension headers, and if b does not have the length in the header.
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
