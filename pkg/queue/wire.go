package queue

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/nlattr"
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
	attrPayload       = 10

	attrConfigCommand = 1
	attrConfigParams  = 2

	commandFamilyBind = 3

	hookLocalIn = 1 // NF_INET_LOCAL_IN of linux/netfilter.h

	copyNone   = 0
	copyPacket = 2

	verdictDrop   = 0
	verdictAccept = 1
)

const (
	msgHeaderLen   = unix.NLMSG_HDRLEN
	nfgenHeaderLen = 4
	attrHeaderLen  = unix.NLA_HDRLEN

	// metaLen is room for all the kernel puts around a payload: the attributes
	// of a packet without conntrack and security context make up less than 300
	// bytes, a layer 2 header of a bridge included.
	metaLen = 512
)

func align4(n int) int { return (n + 3) &^ 3 }

// message is one netlink message of a datagram.
type message struct {
	typ  uint16
	body []byte // without the netlink header
	cut  bool   // the header promises more than there is
}

// nextMessage takes the first netlink message off b. It reports false when
// there is none.
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

// packetMessage is what the kernel sends about one packet.
type packetMessage struct {
	id      uint32
	hasID   bool
	mark    uint32
	toHost  bool
	link    uint32 // by which it came in
	payload []byte // part of the message it was decoded from
}

// decodePacket reads the body of a packet message. It reports false when the
// body is malformed; p is then what could be read.
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

// set takes over one attribute. It reports false when the attribute is too
// short for what it means.
func (p *packetMessage) set(typ uint16, value []byte) bool {
	switch typ {
	case attrPacketHeader: // struct nfqnl_msg_packet_hdr: id, protocol, hook
		if len(value) < 7 {
			return false
		}
		p.id, p.hasID = binary.BigEndian.Uint32(value), true
		p.toHost = value[6] == hookLocalIn
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
	case attrPayload:
		p.payload = value
	}
	return true
}

// decodeError reads the body of an NLMSG_ERROR message: the error number, zero
// for an acknowledgement, and the type of the message it is about.
func decodeError(body []byte) (errno unix.Errno, about uint16, ok bool) {
	if len(body) < 4+msgHeaderLen {
		return 0, 0, false
	}
	code := int32(binary.NativeEndian.Uint32(body))
	return unix.Errno(-code), binary.NativeEndian.Uint16(body[8:]), code <= 0
}

// appendHeader appends the headers of a message to queue number with length
// bytes of attributes.
func appendHeader(b []byte, typ, flags, number uint16, length int) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(msgHeaderLen+nfgenHeaderLen+length))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // sequence number and port: the kernel needs neither
	b = append(b, unix.AF_UNSPEC, unix.NFNETLINK_V0)
	return binary.BigEndian.AppendUint16(b, number)
}

func appendAttrHeader(b []byte, typ uint16, length int) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrHeaderLen+length))
	return binary.NativeEndian.AppendUint16(b, typ)
}

// appendVerdict appends the verdict on packet id. A nil mark leaves the mark of
// the packet alone. The kernel acknowledges nothing and reports errors.
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

// verdictOf returns the verdict of a message that appendVerdict made.
func verdictOf(m message) uint32 {
	return binary.BigEndian.Uint32(m.body[nfgenHeaderLen+attrHeaderLen:])
}

// appendCopyMode appends a request to receive packets, copyRange bytes of each, or
// none at all. The kernel acknowledges it.
func appendCopyMode(b []byte, number uint16, copyRange uint32, mode uint8) []byte {
	const length = 5 // struct nfqnl_msg_config_params, packed
	b = appendHeader(b, msgConfig, unix.NLM_F_REQUEST|unix.NLM_F_ACK, number, attrHeaderLen+align4(length))
	b = appendAttrHeader(b, attrConfigParams, length)
	b = binary.BigEndian.AppendUint32(b, copyRange)
	return append(b, mode, 0, 0, 0)
}
