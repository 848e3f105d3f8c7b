package steertest

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"reflect"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// State is the conntrack state of a packet.
type State string

// States that rules distinguish. Invalid and untracked packets have no connection, and therefore no
// direction and no ct mark.
const (
	New         State = "new"
	Established State = "established"
	Related     State = "related"
	Invalid     State = "invalid"
	Untracked   State = "untracked"
)

// TCP flags.
const (
	SYN = 0x02
	ACK = 0x10
)

// Packet is a packet after DNAT. It passes postrouting unless it is ToHost. Before that it has passed
// output or, if it arrived on an interface, prerouting and forward.
type Packet struct {
	Src, Dst   netip.Addr
	Proto      string // as in /etc/protocols: tcp, udp, sctp, icmp, ipv6-icmp
	TCPFlags   uint8  // 0 means SYN
	SrcPort    uint16
	DstPort    uint16
	ICMPv6Type uint8
	HopLimit   uint8 // of IPv6
	State      State // empty means New
	Reply      bool  // has the reply direction, otherwise the original one
	Mark       uint32
	CTMark     uint32
	Confirmed  bool   // its connection is in the connection table, as it always is if answered
	DNAT       bool   // the destination of the connection was translated
	SrcLocal   bool   // Src is an address of this node
	Interface  string // the interface on which it arrived
	Output     string // the interface on which it leaves
	NoWayBack  bool   // the route to Src is not through the interface on which the packet arrived
	ToHost     bool   // it is for the node itself and passes the input hook
	Forwarded  bool   // it arrived on an interface; the node or IPVS did not send it
	Bridged    bool   // Forwarded by a bridge, so without an input interface at postrouting
	SrcSpent   bool   // Src has sent more than its limits allow
	DstSpent   bool   // Dst has received more than its limits allow
	Extended   bool   // extension headers are between the IP header and Proto
	NoRoom     bool   // the sets to which rules would add it are full

	QueuedAt knftables.BaseChainHook // where an Agent gets it
}

// String returns the fields of p that are set, each with its name.
func (p Packet) String() string {
	var set []string
	v := reflect.ValueOf(p)
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			set = append(set, fmt.Sprintf("%s:%v", v.Type().Field(i).Name, v.Field(i)))
		}
	}
	return "{" + strings.Join(set, " ") + "}"
}

// protocols are the numbers of protocols.
var protocols = map[string]byte{
	"icmp": unix.IPPROTO_ICMP, "ipencap": unix.IPPROTO_IPIP, "tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "ipv6": unix.IPPROTO_IPV6,
	"gre": unix.IPPROTO_GRE, "esp": unix.IPPROTO_ESP, "ipv6-icmp": unix.IPPROTO_ICMPV6, "sctp": unix.IPPROTO_SCTP,
}

// header describes the IP header of a family by offsets of its fields.
type header struct {
	source, destination, next, hopLimit uint32

	protocol  byte // NFPROTO of the family
	extension byte // a protocol of a header that may follow
}

var (
	ipv4 = header{12, 16, 9, 8, unix.NFPROTO_IPV4, unix.IPPROTO_AH}
	ipv6 = header{8, 24, 6, 7, unix.NFPROTO_IPV6, unix.IPPROTO_HOPOPTS}
)

func (p *Packet) header() header {
	if p.Src.Is6() {
		return ipv6
	}
	return ipv4
}

// field returns the bytes of the packet that an expression loads.
func (p *Packet) field(a attributes) []byte {
	var b [40]byte
	if h := p.header(); a.number(unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_NETWORK_HEADER {
		copy(b[h.source:], p.Src.AsSlice())
		copy(b[h.destination:], p.Dst.AsSlice())
		b[h.next], b[h.hopLimit] = protocols[p.Proto], p.HopLimit
		if p.Extended {
			b[h.next] = h.extension
		}
	} else {
		binary.BigEndian.PutUint16(b[0:], p.SrcPort)
		binary.BigEndian.PutUint16(b[2:], p.DstPort)
		switch p.Proto {
		case "tcp":
			b[13] = p.flags()
		case "ipv6-icmp":
			b[0] = p.ICMPv6Type
		}
	}
	return b[a.number(unix.NFTA_PAYLOAD_OFFSET):][:a.number(unix.NFTA_PAYLOAD_LEN)]
}

// flags returns the TCP flags.
func (p *Packet) flags() uint8 {
	if p.TCPFlags == 0 {
		return SYN
	}
	return p.TCPFlags
}

// route returns the result of an expression fib with these flags.
func (p *Packet) route(flags uint32) uint32 {
	switch {
	case flags&unix.NFTA_FIB_F_PRESENT != 0:
		return flag(!p.NoWayBack)
	case flags&unix.NFTA_FIB_F_DADDR != 0:
		return addressType(p.Dst, p.ToHost)
	}
	return addressType(p.Src, p.SrcLocal)
}

func addressType(a netip.Addr, local bool) uint32 {
	switch {
	case local:
		return unix.RTN_LOCAL
	case a.IsMulticast():
		return unix.RTN_MULTICAST
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return unix.RTN_BROADCAST
	}
	return unix.RTN_UNICAST
}

// confirmed reports whether p's connection is in the connection table: p is not its first packet.
func (p *Packet) confirmed() bool {
	if p.Confirmed || p.Reply || p.State == Established {
		return true
	}
	return p.State == Related && (p.Proto == "icmp" || p.Proto == "ipv6-icmp")
}
