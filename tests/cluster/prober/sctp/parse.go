package sctp

import "encoding/binary"

// Parse reads the payload of an IP packet. It accepts what a receiver must accept: other chunks, a
// wrong checksum and what RFC 9260 has receivers discard are not ok.
func Parse(b []byte) (p Packet, ok bool) {
	if len(b) < paramsAt || binary.LittleEndian.Uint32(b[checksumAt:]) != checksum(b) {
		return Packet{}, false
	}
	p = Packet{
		SrcPort:      binary.BigEndian.Uint16(b),
		DstPort:      binary.BigEndian.Uint16(b[2:]),
		Verification: binary.BigEndian.Uint32(b[4:]),
		Type:         Type(b[chunkAt]),
		Tag:          binary.BigEndian.Uint32(b[chunkAt+4:]),
	}
	params, ok := parameters(b[chunkAt:])
	if !ok || p.SrcPort == 0 || p.DstPort == 0 || p.Tag == 0 || !acceptable(b[chunkAt:]) {
		return Packet{}, false
	}
	switch p.Type {
	case Init: // its verification tag is 0 (section 8.5.1)
		ok = p.Verification == 0
	case InitAck:
		ok = p.Verification != 0 && params[cookieParam]
	default:
		ok = false
	}
	if !ok {
		return Packet{}, false
	}
	return p, true
}

// acceptable reports whether the window and the numbers of streams are such that the chunk is not to
// be discarded (section 3.3.2).
func acceptable(chunk []byte) bool {
	return binary.BigEndian.Uint32(chunk[8:]) >= minWindow &&
		binary.BigEndian.Uint16(chunk[12:]) > 0 && binary.BigEndian.Uint16(chunk[14:]) > 0
}

// parameters returns the types of the parameters of a chunk that is the only one of its packet, as
// INIT and INIT ACK are (section 6.10), with chunk being all that follows the common header.
func parameters(chunk []byte) (types map[uint16]bool, ok bool) {
	length := int(binary.BigEndian.Uint16(chunk[2:]))
	if length < chunkLength || padded(length) != len(chunk) {
		return nil, false
	}
	types = make(map[uint16]bool)
	for rest := chunk[chunkLength:length]; len(rest) > 0; {
		if len(rest) < paramLength {
			return nil, false
		}
		size := int(binary.BigEndian.Uint16(rest[2:]))
		if size < paramLength || size > len(rest) {
			return nil, false
		}
		types[binary.BigEndian.Uint16(rest)] = true
		rest = rest[min(padded(size), len(rest)):]
	}
	return types, true
}
