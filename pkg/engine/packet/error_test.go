package packet

import (
	"net/netip"
	"testing"
)

// from4 and from6 build a packet of a protocol with a payload.
func from4(src, dst string, proto Proto, payload []byte) []byte {
	b := make([]byte, 20, 20+len(payload))
	b[0], b[9] = 0x45, byte(proto)
	a, z := netip.MustParseAddr(src).As4(), netip.MustParseAddr(dst).As4()
	copy(b[12:], a[:])
	copy(b[16:], z[:])
	return append(b, payload...)
}

func from6(src, dst string, proto Proto, payload []byte) []byte {
	b := make([]byte, 40, 40+len(payload))
	b[0], b[6] = 0x60, byte(proto)
	a, z := netip.MustParseAddr(src).As16(), netip.MustParseAddr(dst).As16()
	copy(b[8:], a[:])
	copy(b[24:], z[:])
	return append(b, payload...)
}

func icmp(kind byte, about []byte) []byte {
	return append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, about...)
}

func edited(b []byte, edit func([]byte)) []byte { edit(b); return b }

func TestParseError(t *testing.T) {
	ports := []byte{0x9c, 0x40, 0, 80, 0, 0, 0, 0}
	about4, about6 := from4("10.0.0.2", "10.0.0.1", TCP, ports), from6("fd00::2", "fd00::1", UDP, ports)
	const tcp4, udp6 = "TCP 10.0.0.2:40000 -> 10.0.0.1:80", "UDP [fd00::2]:40000 -> [fd00::1]:80"
	for _, tt := range []struct {
		name string
		b    []byte
		want string // empty if there is none
	}{
		{"unreachable", from4("10.0.0.1", "10.0.0.2", ICMP, icmp(3, about4)), tcp4},
		{"time exceeded", from4("10.0.0.1", "10.0.0.2", ICMP, icmp(11, about4)), tcp4},
		{"unreachable", from6("fd00::1", "fd00::2", ICMPv6, icmp(1, about6)), udp6},
		{"packet too big", from6("fd00::1", "fd00::2", ICMPv6, icmp(2, about6)), udp6},
		{"echo request", from4("10.0.0.1", "10.0.0.2", ICMP, icmp(8, about4)), ""},
		{"redirect", from4("10.0.0.1", "10.0.0.2", ICMP, icmp(5, about4)), ""},
		{"echo request", from6("fd00::1", "fd00::2", ICMPv6, icmp(128, about6)), ""},
		{"another family within", from4("10.0.0.1", "10.0.0.2", ICMP, icmp(3, about6)), ""},
		{"another family's ICMP", from4("10.0.0.1", "10.0.0.2", ICMPv6, icmp(1, about4)), ""},
		{"not ICMP", from4("10.0.0.1", "10.0.0.2", UDP, icmp(3, about4)), ""},
		{"a fragment", edited(from4("10.0.0.1", "10.0.0.2", ICMP, icmp(3, about4)), func(b []byte) { b[6] = 0x20 }), ""},
		{"a later fragment", edited(from4("10.0.0.1", "10.0.0.2", ICMP, icmp(3, about4)), func(b []byte) { b[7] = 1 }), ""},
		{"behind an extension header", from6("fd00::1", "fd00::2", destinationOpts, append([]byte{byte(ICMPv6), 0, 0, 0, 0, 0, 0, 0}, icmp(1, about6)...)), ""},
		{"nothing within", from4("10.0.0.1", "10.0.0.2", ICMP, icmp(3, nil)), ""},
		{"half a header within", from4("10.0.0.1", "10.0.0.2", ICMP, icmp(3, about4[:19])), ""},
		{"ports that are cut off", from4("10.0.0.1", "10.0.0.2", ICMP, icmp(3, about4[:22])), "unknown 10.0.0.2 -> 10.0.0.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := ParseError(tt.b)
			if ok != (tt.want != "") || ok && got.String() != tt.want {
				t.Errorf("got %v, %v, want %q", got, ok, tt.want)
			}
		})
	}
}

func FuzzParseError(f *testing.F) {
	f.Add(from4("10.0.0.1", "10.0.0.2", ICMP, icmp(3, from4("10.0.0.2", "10.0.0.1", TCP, make([]byte, 8)))))
	f.Add(from6("fd00::1", "fd00::2", ICMPv6, icmp(1, from6("fd00::2", "fd00::1", UDP, make([]byte, 8)))))
	f.Fuzz(func(t *testing.T, b []byte) {
		quoted, ok := ParseError(b)
		if !ok {
			return
		}
		outer, err := Parse(b)
		if err != nil || outer.Proto != ICMP && outer.Proto != ICMPv6 {
			t.Fatalf("an error in a packet that is %v, %v", outer, err)
		}
		if !quoted.Src.Addr().IsValid() || !quoted.Dst.Addr().IsValid() {
			t.Fatalf("a packet without addresses: %v", quoted)
		}
	})
}
