package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Class is everything that policies read from a TCP or UDP packet, so they decide the same about
// all packets of a class. The addresses are never IPv4-mapped IPv6 ones.
type Class struct {
	Src, Dst netip.Addr
	Proto    Proto  // TCP or UDP
	Port     uint16 // the destination port
}

// Packet returns a packet of the class, with source port 0.
func (c Class) Packet() Packet {
	return Packet{Src: netip.AddrPortFrom(c.Src, 0), Dst: netip.AddrPortFrom(c.Dst, c.Port), Proto: c.Proto}
}

// String returns the class as "TCP 10.0.0.1 -> 10.0.0.2:80".
func (c Class) String() string {
	return fmt.Sprintf("%v %v -> %v", c.Proto, c.Src, netip.AddrPortFrom(c.Dst, c.Port))
}

// ClassOf returns the class of p, which Parse has read from b. It returns false for protocols other
// than TCP and UDP, and where a different parser may read b differently: behind extension headers
// and in fragments.
func ClassOf(p Packet, b []byte) (Class, bool) {
	if p.Proto != TCP && p.Proto != UDP || !isPlain(p, b) {
		return Class{}, false
	}
	return Class{Src: p.Src.Addr(), Dst: p.Dst.Addr(), Proto: p.Proto, Port: p.Dst.Port()}, true
}

// isPlain reports whether the packet is not a fragment, has its transport header directly after the
// IP header, and has addresses of its IP version.
func isPlain(p Packet, b []byte) bool {
	const moreOrOffset = 0x3fff
	if b[0]>>4 == 4 {
		return Proto(b[9]) == p.Proto && binary.BigEndian.Uint16(b[6:8])&moreOrOffset == 0
	}
	return Proto(b[6]) == p.Proto && p.Src.Addr().Is6() && p.Dst.Addr().Is6()
}
