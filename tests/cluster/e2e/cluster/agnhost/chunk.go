package main

import (
	"encoding/binary"
	"hash/crc32"
)

// The types of the two chunks (RFC 9260).
const (
	initChunk    = 1
	initAckChunk = 2
)

const (
	headerLength = 12 // of a packet
	chunkLength  = 20 // of INIT; INIT ACK has the same fixed part
)

// A chunk is an SCTP packet with one INIT or INIT ACK chunk.
type chunk struct {
	kind         byte
	from, to     uint16
	verification uint32 // the initiate tag of the other side, 0 in an INIT
	tag          uint32
}

func (c chunk) bytes() []byte {
	b := make([]byte, headerLength+chunkLength)
	binary.BigEndian.PutUint16(b, c.from)
	binary.BigEndian.PutUint16(b[2:], c.to)
	binary.BigEndian.PutUint32(b[4:], c.verification)
	b[12], b[15] = c.kind, chunkLength
	binary.BigEndian.PutUint32(b[16:], c.tag)
	binary.BigEndian.PutUint32(b[20:], 65536) // receiver window
	b[25], b[27] = 1, 1                       // outbound and inbound streams
	binary.BigEndian.PutUint32(b[28:], c.tag) // initial TSN
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// parseChunk reads a packet without its IP header, as raw sockets return it.
func parseChunk(b []byte) (chunk, bool) {
	if len(b) < headerLength+chunkLength {
		return chunk{}, false
	}
	return chunk{
		kind:         b[12],
		from:         binary.BigEndian.Uint16(b),
		to:           binary.BigEndian.Uint16(b[2:]),
		verification: binary.BigEndian.Uint32(b[4:]),
		tag:          binary.BigEndian.Uint32(b[16:]),
	}, true
}
