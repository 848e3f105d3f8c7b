// Package sctp builds and parses the first two packets of an SCTP association: the client's INIT
// and the server's INIT ACK (RFC 9260). They show whether packets pass in both directions, also
// between kernels without SCTP. The package knows neither sockets nor IP headers.
package sctp

import (
	"crypto/rand"
	"encoding/binary"
	"hash/crc32"
)

// Protocol is the number of SCTP in IP headers.
const Protocol = 132

// Type is the type of a chunk (RFC 9260, section 3.2).
type Type uint8

const (
	Init    Type = 1
	InitAck Type = 2
)

// A Packet has one chunk, an INIT or an INIT ACK.
type Packet struct {
	Type             Type
	SrcPort, DstPort uint16
	// Verification is the initiate tag of the side that receives the packet, 0 in an INIT.
	Verification uint32
	// Tag is the initiate tag: what the other side's packets have as Verification. Never 0.
	Tag uint32
}

// Offsets and lengths in bytes.
const (
	headerLength = 12 // the common header, section 3.1
	checksumAt   = 8
	chunkAt      = headerLength
	chunkLength  = 20 // INIT and INIT ACK without parameters, sections 3.3.2 and 3.3.3
	paramsAt     = chunkAt + chunkLength
	paramLength  = 4 // type and length, section 3.2.1
)

// cookieParam is the type of the State Cookie, which every INIT ACK has (section 3.3.3.1.1).
const cookieParam = 7

// cookie is the content of the State Cookie. The server ignores the COOKIE ECHO that would return it.
const cookie = "prober"

const (
	minWindow = 1500  // of a receiver; less is discarded (section 3.3.2)
	window    = 65536 // ours
)

// castagnoli is the polynomial of the checksum (appendix A).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// NewTag returns an initiate tag that others cannot guess (section 5.3.1).
func NewTag() uint32 {
	for {
		var b [4]byte
		_, _ = rand.Read(b[:]) // never fails
		if tag := binary.BigEndian.Uint32(b[:]); tag != 0 {
			return tag
		}
	}
}

// Answer returns the INIT ACK to an INIT, with the server's tag.
func (p Packet) Answer(tag uint32) Packet {
	return Packet{Type: InitAck, SrcPort: p.DstPort, DstPort: p.SrcPort, Verification: p.Tag, Tag: tag}
}

// Answers reports whether p is an INIT ACK to init.
func (p Packet) Answers(init Packet) bool { return p == init.Answer(p.Tag) }

// Bytes returns the packet as the payload of an IP packet, with its checksum.
func (p Packet) Bytes() []byte {
	b := make([]byte, paramsAt, paramsAt+paramLength+len(cookie)+2)
	binary.BigEndian.PutUint16(b, p.SrcPort)
	binary.BigEndian.PutUint16(b[2:], p.DstPort)
	binary.BigEndian.PutUint32(b[4:], p.Verification)
	chunk := b[chunkAt:]
	chunk[0] = byte(p.Type)
	binary.BigEndian.PutUint32(chunk[4:], p.Tag)
	binary.BigEndian.PutUint32(chunk[8:], window)
	binary.BigEndian.PutUint16(chunk[12:], 1)     // outbound streams
	binary.BigEndian.PutUint16(chunk[14:], 1)     // inbound streams
	binary.BigEndian.PutUint32(chunk[16:], p.Tag) // initial TSN, any number
	length := chunkLength
	if p.Type == InitAck {
		b = binary.BigEndian.AppendUint16(b, cookieParam)
		b = binary.BigEndian.AppendUint16(b, uint16(paramLength+len(cookie)))
		b = append(b, cookie...)
		length = len(b) - chunkAt // includes no padding after the last parameter
		b = append(b, make([]byte, padded(length)-length)...)
	}
	binary.BigEndian.PutUint16(b[chunkAt+2:], uint16(length))
	binary.LittleEndian.PutUint32(b[checksumAt:], checksum(b)) // the order of appendix A
	return b
}

// checksum returns the checksum of a packet, for which its own field is 0.
func checksum(b []byte) uint32 {
	sum := crc32.Update(0, castagnoli, b[:checksumAt])
	sum = crc32.Update(sum, castagnoli, make([]byte, 4))
	return crc32.Update(sum, castagnoli, b[checksumAt+4:])
}

// padded returns a length with padding to four bytes.
func padded(length int) int { return (length + 3) &^ 3 }
