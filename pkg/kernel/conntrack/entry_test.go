package conntrack

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// connection describes a connection in messages to and from the kernel.
type connection struct {
	proto packet.Proto
	// ends are source and destination of the first packet as it arrived, and source and
	// destination of the replies.
	ends   [4]string
	mark   uint32
	zone   uint16
	status uint32
}

// direct returns a connection without NAT.
func direct(proto packet.Proto, src, dst string) connection {
	return connection{proto: proto, ends: [4]string{src, dst, dst, src}, status: statusSeenReply}
}

// Attributes that only tests use.
const (
	attrICMPID     = 4
	attrICMPType   = 5
	attrICMPCode   = 6
	attrICMPv6ID   = 7
	attrICMPv6Type = 8
	attrICMPv6Code = 9
)

// message returns the data of a message about c, from the kernel or to it.
func (c connection) message(t testing.TB) []byte {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	ae.Nested(attrOriginal, c.encodeTuple(c.ends[0], c.ends[1], 8, 128))
	ae.Nested(attrReply, c.encodeTuple(c.ends[2], c.ends[3], 0, 129))
	ae.Uint32(attrStatus, c.status|statusConfirmed)
	ae.Uint32(attrTimeout, 600)
	ae.Uint32(attrMark, c.mark)
	if c.zone != 0 {
		ae.Uint16(attrZone, c.zone)
	}
	b, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return append(nfgenHeader(c.family()), b...)
}

func (c connection) family() uint8 {
	if newSender(c.proto, c.ends[0]).addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func (c connection) encodeTuple(from, to string, icmpType, icmpv6Type uint8) func(*netlink.AttributeEncoder) error {
	src, dst := newSender(c.proto, from), newSender(c.proto, to)
	return func(ae *netlink.AttributeEncoder) error {
		ae.ByteOrder = binary.BigEndian
		ae.Nested(attrTupleIP, func(ae *netlink.AttributeEncoder) error {
			if src.addr.Is4() {
				ae.Bytes(attrIPv4Src, src.addr.AsSlice())
				ae.Bytes(attrIPv4Dst, dst.addr.AsSlice())
			} else {
				ae.Bytes(attrIPv6Src, src.addr.AsSlice())
				ae.Bytes(attrIPv6Dst, dst.addr.AsSlice())
			}
			return nil
		})
		ae.Nested(attrTupleProto, func(ae *netlink.AttributeEncoder) error {
			ae.ByteOrder = binary.BigEndian
			ae.Uint8(attrProtoNum, uint8(c.proto))
			switch {
			case c.proto == packet.ICMP:
				ae.Uint16(attrICMPID, 7)
				ae.Uint8(attrICMPType, icmpType)
				ae.Uint8(attrICMPCode, 0)
			case c.proto == packet.ICMPv6:
				ae.Uint16(attrICMPv6ID, 7)
				ae.Uint8(attrICMPv6Type, icmpv6Type)
				ae.Uint8(attrICMPv6Code, 0)
			case src.hasPorts:
				ae.Uint16(attrSrcPort, src.port)
				ae.Uint16(attrDstPort, dst.port)
			}
			return nil
		})
		return nil
	}
}

// connections are connections of every kind. first is the packet that opened the connection.
var connections = []struct {
	connection connection
	first      string
}{
	{direct(packet.TCP, "10.0.0.1:40000", "10.0.0.2:80"), "TCP 10.0.0.1:40000 -> 10.0.0.2:80"},
	{direct(packet.TCP, "[fd00::1]:40000", "[fd00::2]:80"), "TCP [fd00::1]:40000 -> [fd00::2]:80"},
	{direct(packet.UDP, "10.0.0.1:40000", "10.0.0.2:53"), "UDP 10.0.0.1:40000 -> 10.0.0.2:53"},
	{direct(packet.SCTP, "10.0.0.1:40000", "10.0.0.2:9"), "SCTP 10.0.0.1:40000 -> 10.0.0.2:9"},
	{direct(packet.ICMP, "10.0.0.1", "10.0.0.2"), "ICMP 10.0.0.1 -> 10.0.0.2"},
	{direct(packet.ICMPv6, "fd00::1", "fd00::2"), "ICMPv6 fd00::1 -> fd00::2"},
	{direct(47, "10.0.0.1:0", "10.0.0.2:0"), "protocol 47 10.0.0.1 -> 10.0.0.2"},
	{
		connection{proto: packet.TCP, ends: [4]string{"10.0.0.1:40001", "10.96.0.1:443", "10.0.0.2:6443", "10.0.0.1:40001"}},
		"TCP 10.0.0.1:40001 -> 10.0.0.2:6443", // a Service
	},
	{
		connection{proto: packet.UDP, ends: [4]string{"10.0.0.1:40001", "198.51.100.1:53", "198.51.100.1:53", "203.0.113.1:61000"}},
		"UDP 10.0.0.1:40001 -> 198.51.100.1:53", // masqueraded
	},
	{
		connection{proto: packet.TCP, ends: [4]string{"[fd00::1]:40001", "[fd00:96::1]:80", "[fd00::1]:8080", "[2001:db8::7]:61000"}},
		"TCP [fd00::1]:40001 -> [fd00::1]:8080", // hairpin through a Service: DNAT and SNAT
	},
	{
		connection{proto: packet.UDP, ends: direct(packet.UDP, "10.0.0.1:9", "10.0.0.2:9").ends, zone: 5, mark: otherBits},
		"UDP 10.0.0.1:9 -> 10.0.0.2:9",
	},
}

func TestDecodeEntry(t *testing.T) {
	for _, tt := range connections {
		t.Run(tt.first, func(t *testing.T) {
			e, ok := decodeEntry(tt.connection.message(t))
			p, known := e.first()
			if !ok || !known || p.String() != tt.first {
				t.Errorf("%+v: %v, %v, %v, want %s", tt.connection, p, known, ok, tt.first)
			}
			if e.mark != tt.connection.mark || e.status != tt.connection.status|statusConfirmed {
				t.Errorf("%+v: mark %#x, status %#x", tt.connection, e.mark, e.status)
			}
		})
	}
	c := direct(packet.TCP, "10.0.0.1:1", "10.0.0.2:1")
	c.status = 0xffffffff
	if e, ok := decodeEntry(c.message(t)); !ok || e.status != c.status || !e.offloaded() {
		t.Errorf("status %#x: %v, %v", c.status, e, ok)
	}
	c = direct(packet.TCP, "[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.2]:1")
	if e, ok := decodeEntry(c.message(t)); !ok || e.original.addr != netip.MustParseAddr("10.0.0.1") {
		t.Errorf("mapped address: %v, %v", e.original, ok)
	}
}

// A truncated message is malformed, unless it ends between optional attributes.
func TestDecodeEntryRefusesTruncatedMessages(t *testing.T) {
	c := direct(packet.TCP, "10.0.0.1:1", "10.0.0.2:1")
	whole := c.message(t)
	full, _ := decodeEntry(whole)
	tuples := len(whole) - 3*(unix.NLA_HDRLEN+4)
	for n := range len(whole) {
		e, ok := decodeEntry(whole[:n])
		boundary := n >= tuples && (n-tuples)%(unix.NLA_HDRLEN+4) == 0
		if ok != boundary {
			t.Errorf("%d of %d bytes: %v, want %v", n, len(whole), ok, boundary)
		}
		if ok && (e.original != full.original || e.reply != full.reply) {
			t.Errorf("%d of %d bytes: %+v, want %+v", n, len(whole), e, full)
		}
	}
}

// FuzzDecodeEntry also encodes the key of each decoded entry into the message that sets a mark.
func FuzzDecodeEntry(f *testing.F) {
	for _, c := range connections {
		f.Add(c.connection.message(f))
	}
	f.Add([]byte{unix.AF_INET, 0, 0, 0, 5, 0, 1, 0x80, 0})
	f.Add([]byte{unix.AF_INET, 0, 0, 0, 8, 0, 1, 0x80, 3, 0, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		e, ok := decodeEntry(data)
		if !ok {
			return
		}
		if p, known := e.first(); known && p.Src.Addr().Is4() != p.Dst.Addr().Is4() {
			t.Errorf("%v crosses families", p)
		}
		message := e.key.clone().markMessage(testMark, testMark)
		var tuple []byte
		var mark, mask uint32
		if !nlattr.Each(message[nfgenHeaderLen:], func(typ uint16, value []byte) bool {
			switch typ {
			case attrOriginal:
				tuple = value
			case attrMark:
				return getUint32(value, &mark)
			case attrMarkMask:
				return getUint32(value, &mask)
			}
			return true
		}) {
			t.Fatalf("%x is malformed", message)
		}
		if message[0] != data[0] || !bytes.Equal(tuple, e.key.tuple) || mark != testMark || mask != testMark {
			t.Errorf("%x became %x", data, message)
		}
	})
}

// tcpInfo is the content of CTA_PROTOINFO with the flags of both ends.
func tcpInfo(t *testing.T, original, reply byte) []byte {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	ae.Nested(attrProtocolTCP, func(ae *netlink.AttributeEncoder) error {
		ae.Uint8(attrTCPState, tcpEstablished)
		ae.Bytes(attrTCPFlagsOriginal, []byte{original, 0})
		ae.Bytes(attrTCPFlagsReply, []byte{reply, 0})
		return nil
	})
	b, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPickedUpFlags(t *testing.T) {
	// linux/netfilter/nf_conntrack_tcp.h.
	const windowScale, sack, closeInit, liberal, unacknowledged, maxAck = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
	for _, tt := range []struct {
		name            string
		original, reply byte
		want            bool
	}{
		{"picked up", sack | liberal, sack | liberal, true},
		{"picked up, with data and a FIN since then", sack | liberal | unacknowledged | maxAck, sack | liberal | closeInit, true},
		{"usual", windowScale | sack, windowScale | sack, false},
		{"without SACK", windowScale, windowScale, false},
		{"without options", 0, 0, false},
		{"before the reply", windowScale | sack, 0, false},
		{"offloaded once", windowScale | sack | liberal, windowScale | sack | liberal, false},
		{"offloaded once, without SACK", windowScale | liberal, windowScale | liberal, false},
		{"offloaded once, a server without window scaling", windowScale | sack | liberal, sack | liberal, false},
		{"offloaded once, without options", liberal, liberal, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, _, ok := decodeProtocol(tcpInfo(t, tt.original, tt.reply)); got != tt.want || !ok {
				t.Errorf("flags %#x and %#x: %v, %v, want %v", tt.original, tt.reply, got, ok, tt.want)
			}
		})
	}
	if got, _, ok := decodeProtocol(nil); got || !ok {
		t.Errorf("without attributes: %v, %v", got, ok)
	}
	if _, _, ok := decodeProtocol([]byte{12, 0, 1, 0, 5, 0, attrTCPFlagsReply, 0, 10}); ok {
		t.Error("half of the flags are accepted")
	}
}
