package conntrack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/nlattr"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// A flowtable forwards the packets of an offloaded connection past all hooks, so the mark
// has no effect on them. Removing the entry ends this: the kernel does not use a flowtable
// for an entry that is dying. But the next packet would open the connection again, perhaps
// in the opposite direction, which policies may allow. So an entry that is marked from its
// beginning takes the place of the removed one.

// Attributes of linux/netfilter/nfnetlink_conntrack.h.
const (
	attrNATv4Min   = 1
	attrNATv4Max   = 2
	attrNATProto   = 3
	attrNATv6Min   = 4
	attrNATv6Max   = 5
	attrNATPortMin = 1
	attrNATPortMax = 2

	attrProtocolTCP      = 1
	attrTCPState         = 1
	attrTCPFlagsOriginal = 4
	attrTCPFlagsReply    = 5

	tcpEstablished = 3 // TCP_CONNTRACK_ESTABLISHED
	// tcpPickedUp are the flags of connections that the kernel picks up in the middle:
	// IP_CT_TCP_FLAG_SACK_PERM and IP_CT_TCP_FLAG_BE_LIBERAL, because it does not know
	// their windows.
	tcpPickedUp = 0x0a
	// tcpWindowScale is IP_CT_TCP_FLAG_WINDOW_SCALE.
	tcpWindowScale = 0x01
)

const (
	// The timeouts in seconds of a replacement of which no packet comes: those that
	// kube-proxy sets for TCP, and the kernel for UDP with replies. The kernel does not
	// say how old an offloaded connection is.
	tcpTimeout   = 24 * 60 * 60
	otherTimeout = 2 * 60

	// replaceAttempts bounds how often a packet may be faster than the replacement.
	replaceAttempts = 10
)

// replacement is the entry that takes the place of the one of an offloaded connection.
type replacement struct {
	key
	replies []byte // content of CTA_TUPLE_REPLY
	status  uint32
	mark    uint32
	// pickedUp is that of the entry. The kernel knows the windows of the replacement as
	// little in any case.
	pickedUp bool
}

// change returns what blocks or unblocks e. It stays valid.
func (e entry) change(block bool) change {
	ch := change{key: e.key.clone(), block: block}
	if block && e.offloaded() {
		ch.offloaded = &replacement{key: ch.key, replies: bytes.Clone(e.replies), status: e.status, mark: e.mark, pickedUp: e.pickedUp}
	}
	return ch
}

// blockOffloaded has a marked entry take the place of the one of an offloaded connection.
func blockOffloaded(t table, r replacement, mark uint32) error {
	// Until it is removed, packets that leave the flowtable find the old entry.
	if err := t.setMark(r.key, mark, mark); err != nil {
		return err
	}
	if err := t.remove(r.key); err != nil {
		return err
	}
	r.mark |= mark
	var err error
	for range replaceAttempts {
		if err = t.create(r); !errors.Is(err, unix.EEXIST) {
			return err
		}
		// A packet was faster. It may have come from either end.
		for _, tuple := range [][]byte{r.tuple, r.replies} {
			err := t.remove(key{family: r.family, tuple: tuple, zone: r.zone})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
	return err
}

// message returns the data of the message that creates the entry. The kernel derives the
// tuple of replies from the original one and the translations.
func (r replacement) message() ([]byte, error) {
	original, err := decodeEnds(r.tuple)
	if err != nil {
		return nil, err
	}
	replies, err := decodeEnds(r.replies)
	if err != nil {
		return nil, err
	}
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	ae.Bytes(attrOriginal|netlink.Nested, r.tuple)
	if replies == original.reversed() {
		ae.Bytes(attrReply|netlink.Nested, r.replies)
	} else {
		ae.Nested(attrReply, original.reversed().encode)
		// Both: the kernel would choose another source if a packet was faster.
		ae.Nested(attrNATSrc, translation(replies.dst))
		ae.Nested(attrNATDst, translation(replies.src))
	}
	if len(r.zone) > 0 {
		ae.Bytes(attrZone, r.zone)
	}
	ae.Uint32(attrStatus, r.status&(statusSeenReply|statusAssured)|statusConfirmed)
	if original.proto == packet.TCP {
		ae.Uint32(attrTimeout, tcpTimeout)
		ae.Nested(attrProtocol, r.encodeEstablished)
	} else {
		ae.Uint32(attrTimeout, otherTimeout)
	}
	ae.Uint32(attrMark, r.mark)
	attributes, err := ae.Encode()
	return append(nfgenHeader(r.family), attributes...), err
}

// encodeEstablished encodes CTA_PROTOINFO of an established connection of TCP.
func (r replacement) encodeEstablished(ae *netlink.AttributeEncoder) error {
	flags := byte(tcpPickedUp)
	if !r.pickedUp {
		flags |= tcpWindowScale // without a factor
	}
	ae.Nested(attrProtocolTCP, func(ae *netlink.AttributeEncoder) error {
		ae.Uint8(attrTCPState, tcpEstablished)
		ae.Bytes(attrTCPFlagsOriginal, []byte{flags, flags})
		ae.Bytes(attrTCPFlagsReply, []byte{flags, flags})
		return nil
	})
	return nil
}

// ends are source and destination of one direction of a connection.
type ends struct {
	src, dst netip.AddrPort
	proto    packet.Proto
}

func (e ends) reversed() ends { return ends{src: e.dst, dst: e.src, proto: e.proto} }

// decodeEnds decodes the content of CTA_TUPLE_ORIG or CTA_TUPLE_REPLY.
func decodeEnds(tuple []byte) (ends, error) {
	var e ends
	var src, dst netip.Addr
	var srcPort, dstPort uint16
	ok := nlattr.Each(tuple, func(typ uint16, value []byte) bool {
		switch typ {
		case attrTupleIP:
			return nlattr.Each(value, func(typ uint16, value []byte) bool {
				addr, ok := netip.AddrFromSlice(value)
				switch typ {
				case attrIPv4Src, attrIPv6Src:
					src = addr
				case attrIPv4Dst, attrIPv6Dst:
					dst = addr
				}
				return ok
			})
		case attrTupleProto:
			return nlattr.Each(value, func(typ uint16, value []byte) bool {
				switch {
				case typ == attrProtoNum && len(value) > 0:
					e.proto = packet.Proto(value[0])
				case typ == attrSrcPort && len(value) > 1:
					srcPort = binary.BigEndian.Uint16(value)
				case typ == attrDstPort && len(value) > 1:
					dstPort = binary.BigEndian.Uint16(value)
				}
				return true
			})
		}
		return true
	})
	if !ok || !src.IsValid() || !dst.IsValid() {
		return e, errMalformed
	}
	e.src, e.dst = netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort)
	return e, nil
}

// encode encodes the content of a tuple of a protocol with ports: only these are translated
// by a flowtable.
func (e ends) encode(ae *netlink.AttributeEncoder) error {
	src, dst := uint16(attrIPv4Src), uint16(attrIPv4Dst)
	if e.src.Addr().Is6() {
		src, dst = attrIPv6Src, attrIPv6Dst
	}
	ae.Nested(attrTupleIP, func(ae *netlink.AttributeEncoder) error {
		ae.Bytes(src, e.src.Addr().AsSlice())
		ae.Bytes(dst, e.dst.Addr().AsSlice())
		return nil
	})
	ae.Nested(attrTupleProto, func(ae *netlink.AttributeEncoder) error {
		ae.ByteOrder = binary.BigEndian
		ae.Uint8(attrProtoNum, uint8(e.proto))
		ae.Uint16(attrSrcPort, e.src.Port())
		ae.Uint16(attrDstPort, e.dst.Port())
		return nil
	})
	return nil
}

// translation encodes CTA_NAT_SRC or CTA_NAT_DST with exactly one address and port.
func translation(to netip.AddrPort) func(*netlink.AttributeEncoder) error {
	first, last := uint16(attrNATv4Min), uint16(attrNATv4Max)
	if to.Addr().Is6() {
		first, last = attrNATv6Min, attrNATv6Max
	}
	return func(ae *netlink.AttributeEncoder) error {
		ae.Bytes(first, to.Addr().AsSlice())
		ae.Bytes(last, to.Addr().AsSlice())
		ae.Nested(attrNATProto, func(ae *netlink.AttributeEncoder) error {
			ae.ByteOrder = binary.BigEndian
			ae.Uint16(attrNATPortMin, to.Port())
			ae.Uint16(attrNATPortMax, to.Port())
			return nil
		})
		return nil
	}
}
