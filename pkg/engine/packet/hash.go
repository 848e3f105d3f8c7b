package packet

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

// Seed makes hashes unpredictable for senders of packets.
type Seed uint64

// NewSeed returns a random seed.
func NewSeed() Seed { return Seed(maphash.Comparable(maphash.MakeSeed(), 0)) }

// Hash returns a hash of the fields that distinguish classes: the addresses, the protocol and the
// destination port of p.
func (p Packet) Hash(seed Seed) uint64 {
	src, dst := p.Src.Addr(), p.Dst.Addr()
	h := uint64(seed)
	rest := bits.RotateLeft64(h, 32) ^ (uint64(p.Proto)<<16 | uint64(p.Dst.Port()))
	if src.Is4() && dst.Is4() {
		from, to := src.As4(), dst.As4()
		return mix(h^(uint64(binary.LittleEndian.Uint32(from[:]))<<32|uint64(binary.LittleEndian.Uint32(to[:]))), rest)
	}
	from, to := src.As16(), dst.As16()
	h = mix(h^binary.LittleEndian.Uint64(from[:8]), rest^binary.LittleEndian.Uint64(to[:8]))
	return mix(h^binary.LittleEndian.Uint64(from[8:]), rest^binary.LittleEndian.Uint64(to[8:]))
}

// mix multiplies two words and XORs the halves of the product, as wyhash does.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xc2b2ae3d27d4eb4f)
	return hi ^ lo
}
