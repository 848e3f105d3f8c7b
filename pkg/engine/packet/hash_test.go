package packet

import (
	"net/netip"
	"testing"
)

func TestHash(t *testing.T) {
	packetOf := func(src, dst string, proto Proto) Packet {
		return Packet{Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst), Proto: proto}
	}
	distinct := []Packet{
		packetOf("10.0.0.1:1", "10.0.0.2:80", TCP),
		packetOf("10.0.0.2:1", "10.0.0.1:80", TCP),
		packetOf("10.0.0.1:1", "10.0.0.2:81", TCP),
		packetOf("10.0.0.1:1", "10.0.0.2:80", UDP),
		packetOf("10.0.0.1:1", "10.0.0.3:80", TCP),
		packetOf("[fd00::1]:1", "[fd00::2]:80", TCP),
		packetOf("[fd00::2]:1", "[fd00::1]:80", TCP),
		packetOf("[fd01::1]:1", "[fd00::2]:80", TCP),
		packetOf("[fd00::1]:1", "[fd01::2]:80", TCP),
		packetOf("[fd00::1]:1", "[fd00::2]:80", UDP),
		packetOf("10.0.0.1:1", "[fd00::2]:80", TCP),
	}
	seen := map[uint64]Packet{}
	for _, p := range distinct {
		h := p.Hash(1)
		if other, found := seen[h]; found {
			t.Errorf("%v and %v have the same hash", p, other)
		}
		seen[h] = p
		same := p
		same.Src = netip.AddrPortFrom(p.Src.Addr(), 40000)
		if same.Hash(1) != h {
			t.Errorf("the hash of %v depends on its source port", p)
		}
		if p.Hash(2) == h {
			t.Errorf("the hash of %v does not depend on the seed", p)
		}
	}
	if a, b := NewSeed(), NewSeed(); a == b {
		t.Error("two seeds are the same")
	}
}
