package queue

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// Messages and attributes of linux/netfilter/nfnetlink_queue.h.
const (
	msgPacket  = unix.NFNL_SUBSYS_QUEUE << 8
	msgVerdict = msgPacket | 1
	msgConfig  = msgPacket | 2

	attrPacketHeader  = 1
	attrVerdictHeader = 2
	attrMark          = 3
	attrInLink        = 5 // NFQA_IFINDEX_INDEV
	attrOutLink       = 6 // NFQA_IFINDEX_OUTDEV
	attrPayload       = 10

	attrConfigCommand = 1
	attrConfigParams  = 2

	commandFamilyBind = 3

	// Hooks of linux/netfilter.h.
	hookPrerouting = 0 // NF_INET_PRE_ROUTING
	hookLocalIn    = 1 // NF_INET_LOCAL_IN
	hookForward    = 2 // NF_INET_FORWARD
	hookLocalOut   = 3 // NF_INET_LOCAL_OUT

	copyNone   = 0
	copyPacket = 2

	verdictDrop   = 0
	verdictAccept = 1
)

const (
	msgHeaderLen   = unix.NLMSG_HDRLEN
	nfgenHeaderLen = 4
	attrHeaderLen  = unix.NLA_HDRLEN

	// metaLen is room for everything in a message except the payload: the other attributes of a
	// packet take less than 300 bytes, including the layer 2 header at a bridge. We do not request
	// those for conntrack and the security context.
	metaLen = 512
)

func align4(n int) int { return (n + 3) &^ 3 }

// message is one netlink message of a datagram.
type message struct {
	typ  uint16
	body []byte // without the netlink header
	cut  bool   // the datagram ends before the message does
}

// nextMessage splits the first netlink message off b. It reports false if there is none.
func nextMessage(b []byte) (m message, rest []byte, ok bool) {
	if len(b) < msgHeaderLen {
		return message{}, nil, false
	}
	length := binary.NativeEndian.Uint32(b)
	if length < msgHeaderLen {
		return message{}, nil, false
	}
	m.typ = binary.NativeEndian.Uint16(b[4:])
	if uint64(length) > uint64(len(b)) {
		m.body, m.cut = b[msgHeaderLen:], true
		return m, nil, true
	}
	m.body = b[msgHeaderLen:length]
	return m, b[min(align4(int(length)), len(b)):], true
}

// packetMessage is the kernel's message about one packet.
type packetMessage struct {
	id      uint32
	hasID   bool
	mark    uint32
	hook    uint8
	link    uint32 // the interface on which it arrived
	outLink uint32 // the interface on which it leaves
	payload []byte // part of the message
}

// decodePacket decodes the body of a packet message. If the body is malformed, it returns false and
// what it has decoded so far.
func decodePacket(body []byte) (p packetMessage, ok bool) {
	if len(body) < nfgenHeaderLen {
		return p, false
	}
	for b := body[nfgenHeaderLen:]; len(b) > 0; {
		typ, value, rest, ok := nlattr.Next(b)
		if !ok || !p.set(typ, value) {
			return p, false
		}
		b = rest
	}
	return p, p.hasID
}

// set decodes one attribute. It reports false if the attribute is too short.
func (p *packetMessage) set(typ uint16, value []byte) bool {
	switch typ {
	case attrPacketHeader: // struct nfqnl_msg_packet_hdr: id, protocol, hook
		if len(value) < 7 {
			return false
		}
		p.id, p.hasID = binary.BigEndian.Uint32(value), true
		p.hook = value[6]
	case attrMark:
		if len(value) < 4 {
			return false
		}
		p.mark = binary.BigEndian.Uint32(value)
	case attrInLink:
		if len(value) < 4 {
			return false
		}
		p.link = binary.BigEndian.Uint32(value)
	case attrOutLink:
		if len(value) < 4 {
			return false
		}
		p.outLink = binary.BigEndian.Uint32(value)
	case attrPayload:
		p.payload = value
	}
	return true
}

func (p *packetMessage) toHost() bool { return p.hook == hookLocalIn }

// answerable reports whether packets of this hook pass the base chains at postrouting or input later.
// The hook 0 is not that of a message that does not tell it, because decodePacket requires one.
func (p *packetMessage) answerable() bool {
	return p.hook == hookPrerouting || p.hook == hookForward || p.hook == hookLocalOut
}

// decodeError decodes the body of an NLMSG_ERROR message: the error number, which is 0 in an
// acknowledgement, and the type of the message that it answers.
func decodeError(body []byte) (errno unix.Errno, about uint16, ok bool) {
	if len(body) < 4+msgHeaderLen {
		return 0, 0, false
	}
	code := int32(binary.NativeEndian.Uint32(body))
	return unix.Errno(-code), binary.NativeEndian.Uint16(body[8:]), code <= 0
}

// appendHeader appends the headers of a message to a queue with length bytes of attributes.
func appendHeader(b []byte, typ, flags, number uint16, length int) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(msgHeaderLen+nfgenHeaderLen+length))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // sequence number and port, which the kernel does not need
	b = append(b, unix.AF_UNSPEC, unix.NFNETLINK_V0)
	return binary.BigEndian.AppendUint16(b, number)
}

func appendAttrHeader(b []byte, typ uint16, length int) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrHeaderLen+length))
	return binary.NativeEndian.AppendUint16(b, typ)
}

// appendVerdict appends the verdict on packet id. A nil mark preserves the packet's mark. The kernel
// answers only if there is an error.
func appendVerdict(b []byte, number uint16, id, verdict uint32, mark *uint32) []byte {
	length := attrHeaderLen + 8
	if mark != nil {
		length += attrHeaderLen + 4
	}
	b = appendHeader(b, msgVerdict, unix.NLM_F_REQUEST, number, length)
	b = appendAttrHeader(b, attrVerdictHeader, 8)
	b = binary.BigEndian.AppendUint32(b, verdict)
	b = binary.BigEndian.AppendUint32(b, id)
	if mark != nil {
		b = appendAttrHeader(b, attrMark, 4)
		b = binary.BigEndian.AppendUint32(b, *mark)
	}
	return b
}

// verdictOf returns the verdict in a message of appendVerdict, and the mark, 0 if there is none.
func verdictOf(m message) (verdict, mark uint32) {
	const header = nfgenHeaderLen + attrHeaderLen
	if rest := m.body[header+8:]; len(rest) > 0 {
		mark = binary.BigEndian.Uint32(rest[attrHeaderLen:])
	}
	return binary.BigEndian.Uint32(m.body[header:]), mark
}

// appendCopyMode appends a request to receive packets with copyRange bytes of each, or no packets at
// all. The kernel acknowledges it.
func appendCopyMode(b []byte, number uint16, copyRange uint32, mode uint8) []byte {
	const length = 5 // struct nfqnl_msg_config_params, packed
	b = appendHeader(b, msgConfig, unix.NLM_F_REQUEST|unix.NLM_F_ACK, number, attrHeaderLen+align4(length))
	b = appendAttrHeader(b, attrConfigParams, length)
	b = binary.BigEndian.AppendUint32(b, copyRange)
	return append(b, mode, 0, 0, 0)
}
