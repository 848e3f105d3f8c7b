package labtest

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// Protocol numbers, as assigned by IANA.
const (
	ProtoTCP      = 6
	ProtoUDP      = 17
	ProtoFragment = 44
	ProtoNone     = 59
	ProtoDestOpts = 60
	ProtoAny      = 253 // for experiments
)

// IPv4 builds a packet. flags are the flags and the offset of fragments. The kernel fills
// in length and checksum when it sends the packet.
func IPv4(src, dst netip.Addr, proto byte, flags uint16, payload []byte) []byte {
	packet := make([]byte, 20, 20+len(payload))
	packet[0] = 4<<4 | 5
	binary.BigEndian.PutUint16(packet[4:], 0x4242) // identification
	binary.BigEndian.PutUint16(packet[6:], flags)
	packet[8], packet[9] = 64, proto
	copy(packet[12:], src.AsSlice())
	copy(packet[16:], dst.AsSlice())
	return append(packet, payload...)
}

// Finished fills in the length and the checksum of an IPv4 header, like the kernel.
func Finished(packet []byte) []byte {
	if packet[0]>>4 != 4 {
		return packet
	}
	binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(packet[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(packet[10:], ^uint16(sum))
	return packet
}

// IPv6 builds a packet. next is the type of the header that follows the IPv6 header.
func IPv6(src, dst netip.Addr, next byte, payload []byte) []byte {
	packet := make([]byte, 40, 40+len(payload))
	packet[0] = 6 << 4
	binary.BigEndian.PutUint16(packet[4:], uint16(len(payload)))
	packet[6], packet[7] = next, 64
	copy(packet[8:], src.AsSlice())
	copy(packet[24:], dst.AsSlice())
	return append(packet, payload...)
}

// DestinationOptions builds an extension header of length bytes, a multiple of 8, before
// next. Receivers skip the type of its options.
func DestinationOptions(length int, next byte, payload []byte) []byte {
	const experiment, longest = 0x1e, 257 // receivers accept eight options
	header := []byte{next, byte(length/8 - 1)}
	for left := length - 2; left > 0; {
		option := min(left, longest)
		if left-option == 1 { // too short for an option's own two bytes
			option--
		}
		header = append(header, experiment, byte(option-2))
		header = append(header, make([]byte, option-2)...)
		left -= option
	}
	return append(header, payload...)
}

// TCPSYN returns a header that opens a connection from port to port 80.
func TCPSYN(port uint16) []byte {
	header := make([]byte, 20)
	binary.BigEndian.PutUint16(header[0:], port)
	binary.BigEndian.PutUint16(header[2:], 80)
	header[12], header[13] = 5<<4, 0x02
	return header
}

// UDP returns a datagram from port src to port dst without a checksum.
func UDP(src, dst uint16, payload []byte) []byte {
	header := make([]byte, 8)
	binary.BigEndian.PutUint16(header[0:], src)
	binary.BigEndian.PutUint16(header[2:], dst)
	binary.BigEndian.PutUint16(header[4:], uint16(8+len(payload)))
	return append(header, payload...)
}

// Fragment6 puts payload behind a fragment header. The offset is in bytes.
func Fragment6(next byte, offset uint16, more bool, payload []byte) []byte {
	header := make([]byte, 8)
	header[0] = next
	binary.BigEndian.PutUint16(header[2:], offset)
	if more {
		header[3] |= 1
	}
	binary.BigEndian.PutUint32(header[4:], 0x42424242)
	return append(header, payload...)
}

// IsFrom reports whether the host itself sent the packet, rather than a router in an ICMP
// error.
func IsFrom(packet []byte, host *lab.Host) bool {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		return bytes.Equal(packet[12:16], host.Addr(lab.IPv4).AsSlice()) && packet[9] != 1
	case len(packet) >= 40 && packet[0]>>4 == 6:
		return bytes.Equal(packet[8:24], host.Addr(lab.IPv6).AsSlice()) && packet[6] != 58
	}
	return false
}
