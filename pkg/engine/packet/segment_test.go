package packet

import (
	"encoding/binary"
	"slices"
	"testing"
)

// datagram builds a UDP datagram, 40000 to 80, whose header says length.
func datagram(length int, payload string) []byte {
	b := ports(8)
	binary.BigEndian.PutUint16(b[4:], uint16(length))
	return append(b, payload...)
}

// segment builds a TCP segment, 40000 to 80, with flags and with options of n
// bytes, a multiple of four.
func segment(seq uint32, flags byte, n int, payload string) []byte {
	b := append(ports(20), make([]byte, n)...)
	binary.BigEndian.PutUint32(b[4:], seq)
	b[12], b[13] = byte(len(b)/4)<<4, flags
	return append(b, payload...)
}

func TestParseSegment(t *testing.T) {
	const syn, ack = 0x02, 0x10
	shorter := ipv4(UDP, 0, 0, append(datagram(11, "abc"), "surplus"...))
	for _, tc := range []struct {
		name    string
		in      []byte
		payload string
		seq     uint32
		syn     bool
	}{
		{"udp", ipv4(UDP, 0, 0, datagram(11, "abc")), "abc", 0, false},
		{"udp6", ipv6(UDP, datagram(11, "abc")), "abc", 0, false},
		{"empty datagram", ipv4(UDP, 0, 0, datagram(8, "")), "", 0, false},
		{"datagram shorter than its packet", shorter, "abc", 0, false},
		{"bytes behind the packet", append(ipv4(UDP, 0, 0, datagram(11, "abc")), "padding"...), "abc", 0, false},
		{"tcp", ipv4(TCP, 0, 0, segment(7, ack, 0, "abc")), "abc", 7, false},
		{"tcp6", ipv6(TCP, segment(7, ack, 0, "abc")), "abc", 7, false},
		{"tcp opens", ipv4(TCP, 0, 0, segment(1<<32-1, syn, 40, "")), "", 1<<32 - 1, true},
		{"tcp answers", ipv4(TCP, 0, 0, segment(9, syn|ack, 12, "abc")), "abc", 9, true},
		{"ip options", ipv4(TCP, 0, 40, segment(7, ack, 12, "abc")), "abc", 7, false},
		{"do not fragment", ipv4(UDP, 0x4000, 0, datagram(11, "abc")), "abc", 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, ok := ParseSegment(tc.in)
			if !ok || string(s.Payload) != tc.payload || s.Seq != tc.seq || s.SYN != tc.syn {
				t.Errorf("ParseSegment(%x) = %+v, %v; want payload %q, seq %d, SYN %v", tc.in, s, ok, tc.payload, tc.seq, tc.syn)
			}
			if p, err := Parse(tc.in); err != nil || s.Packet != p {
				t.Errorf("ParseSegment says %v, Parse says %v, %v", s.Packet, p, err)
			}
		})
	}
}

func TestParseSegmentRefusesWhatIsNotWhole(t *testing.T) {
	// lie returns the packet with a wrong length in its IP header.
	lie := func(b []byte, length uint16) []byte {
		at := 2
		if b[0]>>4 == 6 {
			at = 4
		}
		binary.BigEndian.PutUint16(b[at:], length)
		return b
	}
	udp4 := func() []byte { return ipv4(UDP, 0, 0, datagram(11, "abc")) }
	udp6 := func() []byte { return ipv6(UDP, datagram(11, "abc")) }
	tcpHeader := func(words byte) []byte {
		b := segment(0, 0, 0, "abc")
		b[12] = words << 4
		return ipv4(TCP, 0, 0, b)
	}
	for _, tc := range []struct {
		name string
		in   []byte
	}{
		{"nothing", nil},
		{"icmp", ipv4(ICMP, 0, 0, datagram(11, "abc"))},
		{"sctp", ipv4(SCTP, 0, 0, make([]byte, 40))},
		{"protocol 255", ipv6(Unknown, datagram(11, "abc"))},
		{"first fragment", ipv4(UDP, 0x2000, 0, datagram(11, "abc"))},
		{"later fragment", ipv4(UDP, 0x2001, 0, datagram(11, "abc"))},
		{"first fragment 6", ipv6(fragment, fragmentHeader(UDP, 0), datagram(11, "abc"))},
		{"extension header", ipv6(hopByHop, extension(UDP, 8), datagram(11, "abc"))},
		{"cut", udp4()[:30]},
		{"cut 6", udp6()[:50]},
		{"packet says more", lie(udp4(), 32)},
		{"packet says more 6", lie(udp6(), 12)},
		{"packet says less than a header", lie(udp4(), 19)},
		{"packet says 0, as giant ones do", lie(udp4(), 0)},
		{"packet ends in the UDP header", lie(udp4(), 24)},
		{"packet ends in the UDP header 6", lie(udp6(), 4)},
		{"packet ends in the TCP header", lie(ipv4(TCP, 0, 0, segment(0, 0, 0, "abc")), 39)},
		{"datagram says more", ipv4(UDP, 0, 0, datagram(12, "abc"))},
		{"datagram says less than its header", ipv4(UDP, 0, 0, datagram(7, "abc"))},
		{"TCP header of 16 bytes", tcpHeader(4)},
		{"TCP header longer than the packet", tcpHeader(6)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if s, ok := ParseSegment(tc.in); ok {
				t.Errorf("ParseSegment(%x) = %+v", tc.in, s)
			}
		})
	}
}

func TestParseSegmentDoesNotAllocate(t *testing.T) {
	b := ipv6(TCP, segment(0, 0, 12, "abc"))
	if n := testing.AllocsPerRun(100, func() { _, _ = ParseSegment(b) }); n != 0 {
		t.Errorf("%v allocations a packet, want 0", n)
	}
}

func FuzzParseSegment(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(ipv4(UDP, 0, 0, datagram(11, "abc")))
	f.Add(ipv4(TCP, 0, 8, segment(1, 2, 8, "abc")))
	f.Add(ipv4(UDP, 0x2000, 0, datagram(11, "abc")))
	f.Add(ipv6(UDP, datagram(11, "abc")))
	f.Add(ipv6(TCP, segment(1, 16, 0, "abc")))
	f.Add(ipv6(hopByHop, extension(UDP, 8), datagram(11, "abc")))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := ParseSegment(b)
		if !ok {
			return
		}
		if p, err := Parse(b); err != nil || s.Packet != p || !p.Proto.HasPorts() {
			t.Fatalf("%x: ParseSegment says %v, Parse says %v, %v", b, s.Packet, p, err)
		}
		// Bytes beyond the packet were not sent.
		cut := slices.Clone(b[:len(b)-min(len(b), 1)])
		if c, ok := ParseSegment(cut); ok && len(c.Payload) != len(s.Payload) {
			t.Fatalf("%x has %d bytes of payload, and %d without its last one", b, len(s.Payload), len(c.Payload))
		}
	})
}
