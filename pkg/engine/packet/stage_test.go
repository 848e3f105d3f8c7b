package packet

import (
	"encoding/binary"
	"fmt"
	"testing"
)

func TestStageOf(t *testing.T) {
	const fin, syn, rst, psh, ack, urg, ece, cwr = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80
	flags := func(f byte) []byte { return segment(1, f, 0, "data") }
	chunk := func(kind byte) []byte { return append(ports(12), kind, 0, 0, 4) }
	udpTo := func(port uint16) []byte {
		b := datagram(8, "")
		binary.BigEndian.PutUint16(b[2:], port)
		return b
	}
	type test struct {
		name  string
		proto Proto
		in    []byte // after the IP header
		want  Stage
	}
	tests := []test{
		{"SYN", TCP, flags(syn), First},
		{"SYN with ECN", TCP, flags(syn | ece | cwr), First},
		{"SYN and FIN", TCP, flags(syn | fin), First},
		{"SYN and PSH and URG", TCP, flags(syn | psh | urg), First},
		{"SYN and ACK", TCP, flags(syn | ack), Late},
		{"SYN and RST", TCP, flags(syn | rst), Late},
		{"all flags", TCP, flags(0xff), Late},
		{"ACK", TCP, flags(ack), Late},
		{"data", TCP, flags(psh | ack), Late},
		{"FIN", TCP, flags(fin | ack), Late},
		{"FIN without ACK", TCP, flags(fin), Late},
		{"RST", TCP, flags(rst), Late},
		{"RST and ACK", TCP, flags(rst | ack), Late},
		{"no flag", TCP, flags(0), Late},
		{"TCP header that is cut off", TCP, ports(13), First},

		{"INIT", SCTP, chunk(1), First},
		{"DATA", SCTP, chunk(0), Late},
		{"INIT ACK", SCTP, chunk(2), Late},
		{"HEARTBEAT", SCTP, chunk(4), Late},
		{"ABORT", SCTP, chunk(6), Late},
		{"SHUTDOWN", SCTP, chunk(7), Late},
		{"COOKIE ECHO", SCTP, chunk(10), Late},
		{"no chunk", SCTP, ports(12), First},

		{"UDP to a server", UDP, udpTo(53), First},
		{"UDP to the last port of servers", UDP, udpTo(32767), First},
		{"UDP to the first port of clients", UDP, udpTo(32768), Answer},
		{"UDP to the last port", UDP, udpTo(65535), Answer},

		{"GRE", 47, make([]byte, 20), First},
		{"ESP", 50, make([]byte, 20), First},
	}
	icmp := func(proto Proto, late ...byte) {
		for kind := range 256 {
			want := First
			for _, l := range late {
				if int(l) == kind {
					want = Late
				}
			}
			tests = append(tests, test{fmt.Sprint("type ", kind), proto, []byte{byte(kind), 0, 0, 0, 0, 0, 0, 0}, want})
		}
		tests = append(tests, test{"no type", proto, nil, First})
	}
	icmp(ICMP, 0, 3, 4, 11, 12, 14, 16, 18)
	icmp(ICMPv6, 1, 2, 3, 4, 129, 140)
	for _, tc := range tests {
		for family, b := range map[string][]byte{"IPv4": ipv4(tc.proto, 0, 0, tc.in), "IPv4 with options": ipv4(tc.proto, 0, 8, tc.in), "IPv6": ipv6(tc.proto, tc.in)} {
			want := tc.want
			if tc.proto == ICMP && family == "IPv6" || tc.proto == ICMPv6 && family != "IPv6" {
				want = First // ICMP of the other family has no meaning there
			}
			t.Run(tc.proto.String()+"/"+tc.name+"/"+family, func(t *testing.T) {
				p, err := Parse(b)
				if err != nil {
					t.Fatal(err)
				}
				if got := StageOf(p, b); got != want {
					t.Errorf("StageOf(%v, %x) = %d, want %d", p, b, got, want)
				}
			})
		}
	}
}

// Packets that a different parser may read differently count as First.
func TestStageOfWhatIsNotPlain(t *testing.T) {
	ack := segment(1, 0x10, 0, "data")
	for name, b := range map[string][]byte{
		"the first fragment":          ipv4(TCP, 0x2000, 0, ack),
		"a later fragment":            ipv4(TCP, 1, 0, ack),
		"a fragment of IPv6":          ipv6(fragment, fragmentHeader(TCP, 0), ack),
		"an extension header":         ipv6(destinationOpts, extension(TCP, 8), ack),
		"an authentication header":    ipv4(authentication, 0, 0, append(authHeader(TCP, 16), ack...)),
		"a header that is not stated": stating4(30, ipv4(TCP, 0, 0, ack)),
		"a chunk that is not stated":  stating4(32, ipv4(SCTP, 0, 0, append(ports(12), 0, 0, 0, 4))),
	} {
		p, err := Parse(b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := StageOf(p, b); got != First {
			t.Errorf("%s: StageOf(%v) = %d, want %d", name, p, got, First)
		}
	}
}

func FuzzStageOf(f *testing.F) {
	f.Add(ipv4(TCP, 0, 0, segment(1, 0x10, 0, "data")))
	f.Add(ipv4(SCTP, 0, 0, ports(12)))
	f.Add(ipv6(ICMPv6, []byte{129}))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		if stage := StageOf(p, b); stage != First && p.Proto.Hidden() { // must not panic
			t.Fatalf("%v has stage %d", p, stage)
		}
	})
}
