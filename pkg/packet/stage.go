package packet

import "encoding/binary"

// Stage is what a packet says of itself: whether it begins a connection.
type Stage uint8

const (
	// First packets begin a connection, or may: the zero value, so that what cannot be read
	// counts as an attempt to connect.
	First Stage = iota
	// Late packets do not begin a connection: they belong to one, or report about a packet.
	Late
	// Answer is a UDP datagram to a port that clients use and servers do not. It is late if
	// it answers a datagram, which it does not say.
	Answer
)

// FirstEphemeralPort is the first of the ports that systems choose for their clients: Linux
// from 32768 on (ip_local_port_range), others from 49152 on (RFC 6335, section 6).
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
	case ICMP:
		late = b[0]>>4 == 4 && len(header) > 0 && (isError(ICMP, header[0]) || isReply(ICMP, header[0]))
	case ICMPv6:
		late = b[0]>>4 == 6 && len(header) > 0 && (isError(ICMPv6, header[0]) || isReply(ICMPv6, header[0]))
	}
	if late {
		return Late
	}
	return First
}

// The type of the first chunk of SCTP, and its offset.
const (
	sctpChunk = 12
	sctpInit  = 1
)

// OpensAssociation reports whether p, which Parse has read from b, certainly begins an
// association of SCTP: what StageOf cannot read does not.
func OpensAssociation(p Packet, b []byte) bool {
	if p.Proto != SCTP || !isPlain(p, b) {
		return false
	}
	header := transportHeader(b)
	return len(header) > sctpChunk && header[sctpChunk] == sctpInit
}

// transportHeader returns what follows the IP header of a packet that isPlain.
func transportHeader(b []byte) []byte {
	if b[0]>>4 == 4 {
		return stated(b, int(binary.BigEndian.Uint16(b[2:4])), int(b[0]&0x0f)*4)
	}
	const header = 40
	total := int(binary.BigEndian.Uint16(b[4:6]))
	if total != 0 {
		total += header
	}
	return stated(b, total, header)
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
