package queuetest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
)

// The messages of linux/netfilter/nfnetlink_queue.h. They are encoded and decoded independently of
// package queue, so that each checks the other.
const (
	packetMessage  = 0x300
	verdictMessage = 0x301
	configMessage  = 0x302

	packetHeader  = 1
	verdictHeader = 2
	markAttr      = 3
	inLinkAttr    = 5
	outLinkAttr   = 6
	payloadAttr   = 10
	capLenAttr    = 13

	paramsAttr = 2

	copyNone = 0

	inputHook, postroutingHook = 1, 4

	headerLen = 16
	nfgenLen  = 4
)

// encodePacket returns the message of packet s.PacketID.
func encodePacket(s queue.Stat, p Packet) []byte {
	payload := p.Payload
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	header := binary.BigEndian.AppendUint32(nil, s.PacketID)
	hook := byte(postroutingHook)
	if p.ToHost {
		hook = inputHook
	}
	ae.Bytes(packetHeader, append(header, 0x08, 0x00, hook)) // IPv4
	if p.Mark != 0 {
		ae.Uint32(markAttr, p.Mark)
	}
	if p.Link != 0 {
		ae.Uint32(inLinkAttr, p.Link)
	}
	if p.OutLink != 0 {
		ae.Uint32(outLinkAttr, p.OutLink)
	}
	if s.CopyRange > 0 && len(payload) > int(s.CopyRange) {
		ae.Uint32(capLenAttr, uint32(len(payload)))
		payload = payload[:s.CopyRange]
	}
	attrs, err := ae.Encode()
	if err != nil {
		panic(err) // all attributes are short
	}
	if len(payload) > 0 { // the kernel appends it last, without padding
		attrs = binary.NativeEndian.AppendUint16(attrs, uint16(4+len(payload)))
		attrs = binary.NativeEndian.AppendUint16(attrs, payloadAttr)
		attrs = append(attrs, payload...)
	}
	body := binary.BigEndian.AppendUint16([]byte{unix.AF_INET, unix.NFNETLINK_V0}, s.Number)
	return encodeMessage(packetMessage, append(body, attrs...))
}

func encodeError(errno unix.Errno, about []byte) []byte {
	body := binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
	return encodeMessage(unix.NLMSG_ERROR, append(body, about...))
}

func encodeMessage(typ uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(headerLen+len(body)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, make([]byte, headerLen-len(b))...)
	return append(b, body...)
}

// request is a message from user space.
type request struct {
	header      []byte
	acknowledge bool
	queue       uint16
	verdict     *verdict
	params      *params
}

type verdict struct {
	id     uint32
	accept bool
	mark   *uint32
}

type params struct {
	copyRange uint32
	mode      uint8
}

// decodeRequest splits one message off b. The fake is stricter than the kernel, because any fault
// of a message is a bug of package queue.
func decodeRequest(b []byte) (m request, rest []byte, err error) {
	if len(b) < headerLen+nfgenLen {
		return m, nil, errors.New("message is too short")
	}
	length := int(binary.NativeEndian.Uint32(b))
	if length < headerLen+nfgenLen || length > len(b) || length%4 != 0 {
		return m, nil, fmt.Errorf("message of %d bytes says it has %d", len(b), length)
	}
	m.header = b[:headerLen]
	flags := netlink.HeaderFlags(binary.NativeEndian.Uint16(b[6:]))
	if flags&netlink.Request == 0 {
		return m, nil, errors.New("message is not a request")
	}
	m.acknowledge = flags&netlink.Acknowledge != 0
	m.queue = binary.BigEndian.Uint16(b[headerLen+2:])
	attrs := b[headerLen+nfgenLen : length]
	switch typ := binary.NativeEndian.Uint16(b[4:]); typ {
	case verdictMessage:
		m.verdict, err = decodeVerdict(attrs)
	case configMessage:
		m.params, err = decodeParams(attrs)
	default:
		err = fmt.Errorf("message type %#x", typ)
	}
	return m, b[length:], err
}

func decodeVerdict(b []byte) (*verdict, error) {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return nil, err
	}
	ad.ByteOrder = binary.BigEndian
	var v *verdict
	var mark *uint32
	for ad.Next() {
		switch ad.Type() {
		case verdictHeader:
			h := ad.Bytes()
			if len(h) != 8 || binary.BigEndian.Uint32(h) > 1 {
				return nil, fmt.Errorf("verdict %x", h)
			}
			v = &verdict{id: binary.BigEndian.Uint32(h[4:]), accept: h[3] == 1}
		case markAttr:
			n := ad.Uint32()
			mark = &n
		}
	}
	if ad.Err() != nil || v == nil {
		return nil, fmt.Errorf("verdict %x: %w", b, errors.Join(ad.Err(), errors.New("malformed")))
	}
	v.mark = mark
	return v, nil
}

func decodeParams(b []byte) (*params, error) {
	attrs, err := netlink.UnmarshalAttributes(b)
	if err != nil {
		return nil, err
	}
	if len(attrs) != 1 || attrs[0].Type != paramsAttr || len(attrs[0].Data) != 5 {
		return nil, fmt.Errorf("configuration %x", b)
	}
	d := attrs[0].Data
	return &params{copyRange: binary.BigEndian.Uint32(d), mode: d[4]}, nil
}
