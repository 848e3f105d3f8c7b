package conntrack

import (
	"bytes"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// A flowtable forwards the packets of an offloaded connection past all hooks, so its mark has
// no effect on them. Removing the entry ends this: the kernel does not use a flowtable for a
// dying entry. But the next packet would open the connection again, perhaps in the opposite
// direction, which policies may allow. So the removed entry is replaced by one that is created
// with the mark.

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
	// tcpPickedUp is IP_CT_TCP_FLAG_SACK_PERM and IP_CT_TCP_FLAG_BE_LIBERAL: the kernel sets
	// them for connections that it picks up in the middle, because it does not know their
	// windows.
	tcpPickedUp = 0x0a
	// tcpWindowScale is IP_CT_TCP_FLAG_WINDOW_SCALE.
	tcpWindowScale = 0x01
)

const (
	// The timeouts of a replacement in seconds, as kube-proxy sets them for TCP, and the
	// kernel for UDP with replies. The real rest is unknown: the kernel does not send the
	// timeout of an offloaded connection.
	tcpTimeout   = 24 * 60 * 60
	otherTimeout = 2 * 60

	// replaceAttempts bounds how often a packet may create an entry before the replacement.
	replaceAttempts = 10
)

// replacement is the entry that replaces that of an offloaded connection.
type replacement struct {
	key
	replies []byte // content of CTA_TUPLE_REPLY
	status  uint32
	mark    uint32
	// pickedUp is copied from the replaced entry. The kernel does not know the windows of the
	// replacement either way.
	pickedUp bool
}

// change returns the change that blocks or unblocks e. It stays valid after the message that e
// was decoded from.
func (e entry) change(block bool) change {
	ch := change{key: e.key.clone(), block: block, live: e.live()}
	if block && e.offloaded() {
		ch.offloaded = &replacement{key: ch.key, replies: bytes.Clone(e.replies), status: e.status, mark: e.mark, pickedUp: e.pickedUp}
	}
	return ch
}

// blockOffloaded replaces the entry of an offloaded connection with a marked one.
func blockOffloaded(t table, r replacement, mark uint32) error {
	// Packets that leave the flowtable find the old entry until it is removed.
	if err := changeOne(t, request{key: r.key, mark: mark, mask: mark}); err != nil {
		return err
	}
	if err := changeOne(t, request{key: r.key, remove: true}); err != nil {
		return err
	}
	r.mark |= mark
	var err error
	for range replaceAttempts {
		if err = t.create(r); !errors.Is(err, unix.EEXIST) {
			return err
		}
		// A packet from either end has created an entry first.
		for _, tuple := range [][]byte{r.tuple, r.replies} {
			err := changeOne(t, request{key: key{family: r.family, tuple: tuple, zone: r.zone}, remove: true})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
	return err
}

// message returns the data of the message that creates the entry. The kernel derives the reply
// tuple from the original tuple and the NAT attributes.
func (r replacement) message() ([]byte, error) {
	original, err := decodeEnds(r.tuple)
	if err != nil {
		return nil, err
	}
	replies, err := decodeEnds(r.replies)
	if err != nil {
		return nil, err
	}
	b := r.encode()
	if replies == original.reversed() {
		b.Bytes(attrReply|nlattr.Nested, r.replies)
	} else {
		original.reversed().encode(&b)
		// Both are needed: without one the kernel would choose another source if a packet has
		// created an entry first.
		encodeTranslation(&b, attrNATSrc, replies.dst)
		encodeTranslation(&b, attrNATDst, replies.src)
	}
	b.Uint32(attrStatus, r.status&(statusSeenReply|statusAssured)|statusConfirmed)
	if original.proto == packet.TCP {
		b.Uint32(attrTimeout, tcpTimeout)
		r.encodeEstablished(&b)
	} else {
		b.Uint32(attrTimeout, otherTimeout)
	}
	b.Uint32(attrMark, r.mark)
	return b, nil
}

// encodeEstablished encodes CTA_PROTOINFO of an established TCP connection.
func (r replacement) encodeEstablished(b *nlattr.Buffer) {
	flags := byte(tcpPickedUp)
	if !r.pickedUp {
		flags |= tcpWindowScale // with a scale of 0
	}
	info := b.Nest(attrProtocol)
	tcp := b.Nest(attrProtocolTCP)
	b.Bytes(attrTCPState, []byte{tcpEstablished})
	b.Bytes(attrTCPFlagsOriginal, []byte{flags, flags})
	b.Bytes(attrTCPFlagsReply, []byte{flags, flags})
	b.End(tcp)
	b.End(info)
}

// ends are source and destination of one direction of a connection.
type ends struct {
	src, dst netip.AddrPort
	proto    packet.Proto
}

func (e ends) reversed() ends { return ends{src: e.dst, dst: e.src, proto: e.proto} }

// decodeEnds decodes the content of CTA_TUPLE_ORIG or CTA_TUPLE_REPLY.
func decodeEnds(tuple []byte) (ends, error) {
	var s sender
	if !s.decode(tuple) || !s.addr.IsValid() || !s.to.IsValid() {
		return ends{}, errMalformed
	}
	return ends{netip.AddrPortFrom(s.addr, s.port), netip.AddrPortFrom(s.to, s.toPort), s.proto}, nil
}

// encode encodes CTA_TUPLE_REPLY of a protocol with ports. A flowtable translates no other protocols.
func (e ends) encode(b *nlattr.Buffer) {
	src, dst := uint16(attrIPv4Src), uint16(attrIPv4Dst)
	if e.src.Addr().Is6() {
		src, dst = attrIPv6Src, attrIPv6Dst
	}
	tuple := b.Nest(attrReply)
	ip := b.Nest(attrTupleIP)
	b.Bytes(src, e.src.Addr().AsSlice())
	b.Bytes(dst, e.dst.Addr().AsSlice())
	b.End(ip)
	proto := b.Nest(attrTupleProto)
	b.Bytes(attrProtoNum, []byte{byte(e.proto)})
	b.Uint16(attrSrcPort, e.src.Port())
	b.Uint16(attrDstPort, e.dst.Port())
	b.End(proto)
	b.End(tuple)
}

// encodeTranslation encodes CTA_NAT_SRC or CTA_NAT_DST with exactly one address and port.
func encodeTranslation(b *nlattr.Buffer, kind uint16, to netip.AddrPort) {
	first, last := uint16(attrNATv4Min), uint16(attrNATv4Max)
	if to.Addr().Is6() {
		first, last = attrNATv6Min, attrNATv6Max
	}
	translation := b.Nest(kind)
	b.Bytes(first, to.Addr().AsSlice())
	b.Bytes(last, to.Addr().AsSlice())
	ports := b.Nest(attrNATProto)
	b.Uint16(attrNATPortMin, to.Port())
	b.Uint16(attrNATPortMax, to.Port())
	b.End(ports)
	b.End(translation)
}
