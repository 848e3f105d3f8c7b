package packet

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
)

// ipv4 builds an IPv4 packet from 10.0.0.1 to 10.0.0.2.
func ipv4(proto Proto, offset uint16, options int, payload []byte) []byte {
	b := make([]byte, 20+options)
	b[0] = 4<<4 | byte(len(b)/4)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)+len(payload)))
	binary.BigEndian.PutUint16(b[6:], offset)
	b[8], b[9] = 64, byte(proto)
	copy(b[12:], []byte{10, 0, 0, 1})
	copy(b[16:], []byte{10, 0, 0, 2})
	return append(b, payload...)
}

// ipv6 builds an IPv6 packet from fd00::1 to fd00::2 whose first next header is next.
func ipv6(next Proto, payload ...[]byte) []byte {
	b := make([]byte, 40)
	b[0], b[6], b[7] = 6<<4, byte(next), 64
	copy(b[8:], netip.MustParseAddr("fd00::1").AsSlice())
	copy(b[24:], netip.MustParseAddr("fd00::2").AsSlice())
	for _, p := range payload {
		b = append(b, p...)
	}
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
	return b
}

// ports builds the first n bytes of a transport header, 40000 to 80.
func ports(n int) []byte {
	b := make([]byte, max(n, 4))
	binary.BigEndian.PutUint16(b[0:], 40000)
	binary.BigEndian.PutUint16(b[2:], 80)
	return b[:n]
}

// extension builds an extension header of n bytes (a multiple of eight).
func extension(next Proto, n int) []byte {
	b := make([]byte, n)
	b[0], b[1] = byte(next), byte(n/8-1)
	return b
}

// authHeader builds an authentication header of n bytes (a multiple of four).
func authHeader(next Proto, n int) []byte {
	b := make([]byte, n)
	b[0], b[1] = byte(next), byte(n/4-2)
	return b
}

func fragmentHeader(next Proto, offset uint16) []byte {
	b := make([]byte, 8)
	b[0] = byte(next)
	binary.BigEndian.PutUint16(b[2:], offset<<3|1)
	return b
}

// stating4 makes the IPv4 header of b state the length n.
func stating4(n uint16, b []byte) []byte {
	binary.BigEndian.PutUint16(b[2:], n)
	return b
}

// stating6 makes the IPv6 header of b state the payload length n.
func stating6(n uint16, b []byte) []byte {
	binary.BigEndian.PutUint16(b[4:], n)
	return b
}

// A hidden protocol may be TCP.
func TestHidden(t *testing.T) {
	hidden := map[Proto]bool{50: true, 108: true, 141: true, 142: true}
	for n := 148; n <= 255; n++ {
		hidden[Proto(n)] = true
	}
	for n := range 256 {
		if p := Proto(n); p.Hidden() != hidden[p] {
			t.Errorf("%v is hidden: %v, want %v", p, p.Hidden(), hidden[p])
		}
	}
}

func TestParse(t *testing.T) {
	const (
		v4     = "10.0.0.1 -> 10.0.0.2"
		v6     = "fd00::1 -> fd00::2"
		v4Port = "10.0.0.1:40000 -> 10.0.0.2:80"
		v6Port = "[fd00::1]:40000 -> [fd00::2]:80"
	)
	mapped := ipv6(UDP, ports(8))
	copy(mapped[8:], netip.MustParseAddr("::ffff:192.0.2.1").AsSlice())

	for _, tc := range []struct {
		name string
		in   []byte
		want string
	}{
		{"tcp", ipv4(TCP, 0, 0, ports(20)), "TCP " + v4Port},
		{"udp", ipv4(UDP, 0, 0, ports(8)), "UDP " + v4Port},
		{"sctp", ipv4(SCTP, 0, 0, ports(12)), "SCTP " + v4Port},
		{"icmp", ipv4(ICMP, 0, 0, ports(8)), "ICMP " + v4},
		{"ip options", ipv4(TCP, 0, 40, ports(20)), "TCP " + v4Port},
		{"do not fragment", ipv4(TCP, 0x4000, 0, ports(20)), "TCP " + v4Port},
		{"first fragment", ipv4(UDP, 0x2000, 0, ports(8)), "UDP " + v4Port},
		{"later fragment", ipv4(UDP, 0x2001, 0, ports(20)), "unknown " + v4},
		{"last fragment", ipv4(TCP, 0x00b9, 0, ports(20)), "unknown " + v4},
		{"tcp of 12 bytes", ipv4(TCP, 0, 0, ports(12)), "unknown " + v4},
		{"tcp of 3 bytes", ipv4(TCP, 0, 0, ports(3)), "unknown " + v4},
		{"tcp without payload", ipv4(TCP, 0, 0, nil), "unknown " + v4},
		{"udp of 7 bytes", ipv4(UDP, 0, 0, ports(7)), "unknown " + v4},
		{"sctp of 11 bytes", ipv4(SCTP, 0, 0, ports(11)), "unknown " + v4},
		{"udp-lite is not udp", ipv4(136, 0, 0, ports(8)), "protocol 136 " + v4},
		{"later fragment of icmp", ipv4(ICMP, 0x2001, 0, ports(20)), "ICMP " + v4},
		{"ports behind the stated length", append(ipv4(UDP, 0, 0, nil), ports(8)...), "unknown " + v4},
		{"stated length within the header", stating4(19, ipv4(TCP, 0, 8, ports(20))), "unknown " + v4},
		{"stated length within the ports", stating4(39, ipv4(TCP, 0, 0, ports(20))), "unknown " + v4},
		{"stated length above what was copied", stating4(1500, ipv4(TCP, 0, 0, ports(20))), "TCP " + v4Port},
		{"too long to state its length", stating4(0, ipv4(TCP, 0, 0, ports(20))), "TCP " + v4Port},
		{"authentication header 4", ipv4(authentication, 0, 0, append(authHeader(TCP, 24), ports(20)...)), "TCP " + v4Port},
		{"cut authentication header 4", ipv4(authentication, 0, 0, authHeader(TCP, 24)[:20]), "unknown " + v4},
		{"later fragment of authentication 4", ipv4(authentication, 0x2001, 0, append(authHeader(TCP, 24), ports(20)...)), "unknown " + v4},
		{"extension headers are of IPv6", ipv4(destinationOpts, 0, 0, append(extension(TCP, 8), ports(20)...)), "protocol 60 " + v4},

		{"tcp6", ipv6(TCP, ports(20)), "TCP " + v6Port},
		{"icmpv6", ipv6(ICMPv6, ports(8)), "ICMPv6 " + v6},
		{"mapped source", mapped, "UDP 192.0.2.1:40000 -> [fd00::2]:80"},
		{"hop by hop", ipv6(hopByHop, extension(TCP, 8), ports(20)), "TCP " + v6Port},
		{"chain", ipv6(hopByHop, extension(routing, 8), extension(destinationOpts, 24), extension(UDP, 16), ports(8)), "UDP " + v6Port},
		{"mobility, HIP, shim6", ipv6(mobility, extension(hostIdentity, 8), extension(shim6, 8), extension(UDP, 8), ports(8)), "UDP " + v6Port},
		{"authentication header", ipv6(authentication, authHeader(TCP, 24), ports(20)), "TCP " + v6Port},
		{"authentication header of no length", ipv6(authentication, []byte{byte(TCP), 0, 0, 0, 0, 0, 0, 0}, ports(20)), "TCP " + v6Port},
		{"96 bytes of options", ipv6(destinationOpts, extension(TCP, 96), ports(20))[:128], "unknown " + v6},
		{"200 bytes of options, cut", ipv6(destinationOpts, extension(TCP, 200), ports(20))[:128], "unknown " + v6},
		{"200 bytes of options, whole", ipv6(destinationOpts, extension(TCP, 200), ports(20)), "TCP " + v6Port},
		{"first fragment 6", ipv6(fragment, fragmentHeader(TCP, 0), ports(20)), "TCP " + v6Port},
		{"later fragment 6", ipv6(fragment, fragmentHeader(TCP, 1), ports(20)), "unknown " + v6},
		{"cut extension", ipv6(hopByHop, extension(TCP, 8)[:7]), "unknown " + v6},
		{"cut fragment header", ipv6(fragment, fragmentHeader(TCP, 0)[:7]), "unknown " + v6},
		{"cut authentication header", ipv6(authentication, authHeader(TCP, 24)[:7]), "unknown " + v6},
		{"no next header", ipv6(noNextHeader), "protocol 59 " + v6},
		{"ports behind the stated length 6", append(ipv6(hopByHop, extension(TCP, 8)), ports(20)...), "unknown " + v6},
		{"jumbogram", stating6(0, ipv6(hopByHop, extension(TCP, 8), ports(20))), "TCP " + v6Port},
		{"unassigned next header", ipv6(hopByHop, extension(200, 8), extension(TCP, 8), ports(20)), "protocol 200 " + v6},
		{"esp", ipv6(50, ports(40)), "protocol 50 " + v6},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Parse(tc.in)
			if err != nil || got.String() != tc.want {
				t.Errorf("Parse(%x) = %v, %v; want %s", tc.in, got, err, tc.want)
			}
		})
	}
}

func TestParseRefusesWhatHasNoAddresses(t *testing.T) {
	shortHeader := ipv4(TCP, 0, 0, ports(20))
	shortHeader[0] = 4<<4 | 4
	for _, tc := range []struct {
		name string
		in   []byte
		want error
	}{
		{"nothing", nil, ErrTruncated},
		{"one byte", []byte{0x45}, ErrTruncated},
		{"cut IPv4 header", ipv4(TCP, 0, 0, nil)[:19], ErrTruncated},
		{"cut IPv4 options", ipv4(TCP, 0, 8, nil)[:24], ErrTruncated},
		{"cut IPv6 header", ipv6(TCP)[:39], ErrTruncated},
		{"IPv4 header length 16", shortHeader, ErrHeader},
		{"version 0", make([]byte, 64), ErrVersion},
		{"version 15", []byte{0xff, 0xff, 0xff, 0xff}, ErrVersion},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, err := Parse(tc.in); !errors.Is(err, tc.want) {
				t.Errorf("Parse(%x) = %v, %v; want %v", tc.in, got, err, tc.want)
			}
		})
	}
}

// Every prefix of a valid packet either fails to parse, or gives Unknown as long as the transport
// header is incomplete, or gives the right result.
func TestParseOfEveryPrefix(t *testing.T) {
	for _, whole := range [][]byte{
		ipv4(TCP, 0, 12, ports(20)),
		ipv6(hopByHop, extension(destinationOpts, 16), extension(fragment, 8), fragmentHeader(SCTP, 0), ports(12)),
	} {
		want, err := Parse(whole)
		if err != nil {
			t.Fatal(err)
		}
		for n := range whole {
			got, err := Parse(whole[:n])
			if err == nil && got.Proto != Unknown {
				t.Errorf("the first %d of %d bytes are %v", n, len(whole), got)
			}
			if err == nil && got.Src.Addr() != want.Src.Addr() {
				t.Errorf("the first %d bytes come from %v, want %v", n, got.Src.Addr(), want.Src.Addr())
			}
		}
	}
}

func TestParseDoesNotAllocate(t *testing.T) {
	b := ipv6(hopByHop, extension(TCP, 8), ports(20))
	if n := testing.AllocsPerRun(100, func() { _, _ = Parse(b) }); n != 0 {
		t.Errorf("%v allocations a packet, want 0", n)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(ipv4(TCP, 0, 0, ports(20)))
	f.Add(ipv4(UDP, 0x2001, 8, ports(8)))
	f.Add(ipv4(TCP, 0, 0, ports(12)))
	f.Add(ipv6(TCP, ports(20)))
	f.Add(ipv6(hopByHop, extension(fragment, 8), fragmentHeader(UDP, 0), ports(8)))
	f.Add(ipv6(destinationOpts, extension(TCP, 1000), ports(20)))
	f.Add(ipv6(authentication, authHeader(TCP, 24), ports(20)))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		if !p.Src.Addr().IsValid() || !p.Dst.Addr().IsValid() {
			t.Fatalf("%x has no address: %v", b, p)
		}
		if p.Src.Addr().Is4In6() || p.Dst.Addr().Is4In6() {
			t.Fatalf("%x has a mapped address: %v", b, p)
		}
		if !p.Proto.HasPorts() && (p.Src.Port() != 0 || p.Dst.Port() != 0) {
			t.Fatalf("%x has ports without a protocol that has them: %v", b, p)
		}
	})
}
