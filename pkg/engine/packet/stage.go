package packet

import "encoding/binary"

// Stage is whether a packet begins a connection, from the packet alone.
type Stage uint8

const (
	// First packets begin a connection, or may. It is the zero value, so that unreadable packets
	// count as attempts to connect.
	First Stage = iota
	// Late packets do not begin a connection: they belong to one, or report an error about a
	// packet.
	Late
	// Answer is a UDP datagram to a port that clients use and servers do not. It is late if it
	// answers a datagram, which cannot be read from it.
	Answer
)

// FirstEphemeralPort is the lowest port that systems assign to clients by default: Linux from 32768
// (ip_local_port_range), others from 49152 (RFC 6335, section 6).
const FirstEphemeralPort = 32768

// StageOf returns the stage of p, which Parse has read from b.
//
//   - TCP: only a segment with SYN and without ACK and RST begins a connection. A listener
//     ignores one with RST, answers one with ACK by a reset, and drops any other one without
//     SYN (RFC 9293, section 3.10.7.2). FIN beside SYN does not matter to it.
//   - SCTP: only the chunk INIT begins an association, and it is alone in its packet
//     (RFC 9260, sections 3.3.2 and 5.1).
//   - ICMP: errors and replies begin nothing (RFC 792, RFC 950; RFC 4443, RFC 4620).
//     Connection tracking does not take them for first packets either
//     (nf_conntrack_proto_icmp.c, nf_conntrack_proto_icmpv6.c: valid_new).
//   - UDP: no field says it, see Answer.
//
// Packets of other protocols, fragments, and packets with IPv6 extension headers are First:
// another parser may read them otherwise.
func StageOf(p Packet, b []byte) Stage {
	if p.Proto == Unknown || !isPlain(p, b) {
		return First
	}
	header := transportHeader(b)
	late := false
	switch p.Proto {
	case TCP:
		const flags, syn, rst, ack = 13, 0x02, 0x04, 0x10
		late = header[flags]&(syn|rst|ack) != syn
	case UDP:
		if p.Dst.Port() >= FirstEphemeralPort {
			return Answer
		}
	case SCTP:
		late = len(header) > sctpChunk && header[sctpChunk] != sctpInit
	case ICMP, ICMPv6:
		is4 := b[0]>>4 == 4
		late = is4 == (p.Proto == ICMP) && len(header) > 0 && (isError(p.Proto, header[0]) || isReply(p.Proto, header[0]))
	}
	if late {
		return Late
	}
	return First
}

// The type of the first chunk of SCTP and its offset.
const (
	sctpChunk = 12
	sctpInit  = 1
)

// OpensAssociation reports whether p, which Parse has read from b, certainly begins an SCTP
// association. Packets that StageOf cannot read do not count.
func OpensAssociation(p Packet, b []byte) bool {
	if p.Proto != SCTP || !isPlain(p, b) {
		return false
	}
	header := transportHeader(b)
	return len(header) > sctpChunk && header[sctpChunk] == sctpInit
}

// transportHeader returns the bytes after the IP header of a packet for which isPlain is true.
func transportHeader(b []byte) []byte {
	if b[0]>>4 == 4 {
		return payload(b, int(binary.BigEndian.Uint16(b[2:4])), int(b[0]&0x0f)*4)
	}
	const header = 40
	total := int(binary.BigEndian.Uint16(b[4:6]))
	if total != 0 {
		total += header
	}
	return payload(b, total, header)
}

// isReply reports whether an ICMP message of this type replies to a request.
func isReply(proto Proto, kind byte) bool {
	if proto == ICMPv6 {
		return kind == 129 || kind == 140 // echo, node information
	}
	switch kind {
	case 0, 14, 16, 18: // echo, timestamp, information, address mask
		return true
	}
	return false
}
