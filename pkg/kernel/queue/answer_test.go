package queue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

func accept(Packet) Verdict { return Accept }

func testAnswerer(handler Handler) *answerer {
	cfg := Config{First: 100, Count: 1, Registerer: prometheus.NewRegistry(), AcceptMark: 0x100}.withDefaults()
	return newAnswerer(cfg, cfg.First, handler, newMetrics(cfg), klog.Background())
}

// attr returns one netlink attribute, padded.
func attr(typ uint16, value ...byte) []byte {
	b := appendAttrHeader(nil, typ, len(value))
	b = append(b, value...)
	return append(b, make([]byte, align4(len(b))-len(b))...)
}

func idAttr(id uint32) []byte {
	return attr(attrPacketHeader, append(binary.BigEndian.AppendUint32(nil, id), 0x08, 0x00, 3)...)
}

// packetMsg returns the message of a packet with the given attributes.
func packetMsg(attrs ...[]byte) []byte {
	all := slices.Concat(attrs...)
	return append(appendHeader(nil, msgPacket, 0, 100, len(all)), all...)
}

func errorMsg(errno unix.Errno, about uint16) []byte {
	body := binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
	body = appendHeader(body, about, 0, 100, 0)[:4+msgHeaderLen]
	b := appendHeader(nil, unix.NLMSG_ERROR, 0, 0, len(body)-nfgenHeaderLen)[:msgHeaderLen]
	return append(b, body...)
}

// verdicts decodes the verdicts to be sent, as "id verdict mark".
func (a *answerer) verdicts() []string {
	var got []string
	for b := a.out; len(b) > 0; {
		m, rest, _ := nextMessage(b)
		v := m.body[nfgenHeaderLen+attrHeaderLen:]
		s := fmt.Sprintf("%d %d", binary.BigEndian.Uint32(v[4:]), binary.BigEndian.Uint32(v))
		if len(v) > 8 {
			s += fmt.Sprintf(" %#x", binary.BigEndian.Uint32(v[8+attrHeaderLen:]))
		}
		got, b = append(got, s), rest
	}
	return got
}

func TestDatagram(t *testing.T) {
	payload := attr(attrPayload, 1, 2, 3, 4)
	whole := packetMsg(idAttr(7), attr(attrMark, 0, 0, 0x40, 0), payload)
	tests := []struct {
		name      string
		datagram  []byte
		want      []string
		malformed float64
	}{
		{"packet", whole, []string{"7 1 0x4100"}, 0},
		{"no mark", packetMsg(idAttr(7), payload), []string{"7 1 0x100"}, 0},
		{"no payload", packetMsg(idAttr(7)), []string{"7 1 0x100"}, 0},
		{"two messages", slices.Concat(whole, packetMsg(idAttr(8))), []string{"7 1 0x4100", "8 1 0x100"}, 0},
		{"unknown attributes", packetMsg(attr(0x2fff, 1), idAttr(7), attr(99)), []string{"7 1 0x100"}, 0},
		{"flags in the attribute type", packetMsg(attr(attrPacketHeader|unix.NLA_F_NET_BYTEORDER, 0, 0, 0, 7, 8, 0, 3)), []string{"7 1 0x100"}, 0},
		{"payload without padding", packetMsg(idAttr(7), attr(attrPayload, 1)[:5]), []string{"7 1 0x100"}, 0},
		{"nothing to do", errorMsg(0, msgConfig), nil, 0},
		{"no message", []byte{1, 2, 3}, nil, 1},
		{"length below a header", []byte{15, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, nil, 1},
		{"message type of another subsystem", appendHeader(nil, 0x0a00, 0, 0, 0), nil, 1},
		{"no id", packetMsg(payload), nil, 1},
		{"no attributes", packetMsg(), nil, 1},
		{"message cut in the payload", whole[:len(whole)-2], []string{"7 0"}, 1},
		{"message cut between attributes", whole[:len(whole)-len(payload)], []string{"7 0"}, 1},
		{"message cut before the id", whole[:24], nil, 1},
		{"attribute longer than the message", packetMsg(idAttr(7), []byte{200, 0, attrPayload, 0}), []string{"7 0"}, 1},
		{"attribute shorter than its header", packetMsg(idAttr(7), []byte{3, 0, attrPayload, 0}), []string{"7 0"}, 1},
		{"half an attribute header", packetMsg(idAttr(7), []byte{4, 0}), []string{"7 0"}, 1},
		{"short mark", packetMsg(idAttr(7), attr(attrMark, 1)), []string{"7 0"}, 1},
		{"short packet header", packetMsg(attr(attrPacketHeader, 0, 0, 0, 7)), nil, 1},
		{"short error", appendHeader(nil, unix.NLMSG_ERROR, 0, 0, 0), nil, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := testAnswerer(accept)
			a.datagram(tt.datagram)
			if got := a.verdicts(); !slices.Equal(got, tt.want) {
				t.Errorf("verdicts %v, want %v", got, tt.want)
			}
			if got := testutil.ToFloat64(a.metrics.malformed); got != tt.malformed {
				t.Errorf("%v malformed, want %v", got, tt.malformed)
			}
		})
	}
}

func TestKernelErrors(t *testing.T) {
	a := testAnswerer(accept)
	a.datagram(errorMsg(unix.ENOENT, msgVerdict))
	a.datagram(errorMsg(0, msgVerdict))
	if a.failure != nil {
		t.Errorf("a packet that is gone is fatal: %v", a.failure)
	}
	a.datagram(errorMsg(unix.ENOMEM, msgVerdict))
	if gone, refused := testutil.ToFloat64(a.metrics.gone), testutil.ToFloat64(a.metrics.refused); gone != 1 || refused != 1 {
		t.Errorf("%v gone and %v refused, want 1 and 1", gone, refused)
	}
	if !errors.Is(a.failure, unix.ENOMEM) {
		t.Errorf("after a refused verdict: %v, want ENOMEM", a.failure)
	}
	a.datagram(errorMsg(unix.EPERM, msgConfig))
	if !errors.Is(a.failure, unix.EPERM) {
		t.Errorf("after a refused configuration: %v, want EPERM", a.failure)
	}
}

// batchOf returns the datagrams of a full batch of packets with the payload of a TCP header.
func batchOf(mark bool) [][]byte {
	var batch [][]byte
	for id := range uint32(batchLen) {
		attrs := [][]byte{idAttr(id), attr(5, 0, 0, 0, 2), attr(6, 0, 0, 0, 3)} // in and out device
		if mark {
			attrs = append(attrs, attr(attrMark, 0, 0, 0x40, 0))
		}
		attrs = append(attrs, attr(attrPayload, make([]byte, DefaultCopyRange)...))
		batch = append(batch, packetMsg(attrs...))
	}
	return batch
}

func TestABatchAllocatesNothing(t *testing.T) {
	tests := map[string]Handler{
		"accepted": accept,
		"dropped":  func(Packet) Verdict { return Drop },
		"pending and then accepted": func(q Packet) Verdict {
			if q.Last {
				return Accept
			}
			return Defer
		},
	}
	for name, handler := range tests {
		t.Run(name, func(t *testing.T) {
			a, batch := testAnswerer(handler), batchOf(true)
			got := testing.AllocsPerRun(100, func() {
				for _, datagram := range batch {
					a.datagram(datagram)
				}
				a.retryAllPending(func(*pendingPacket) bool { return true })
				a.out = a.out[:0]
			})
			if got != 0 {
				t.Errorf("%v allocations for %d packets, want none", got, len(batch))
			}
		})
	}
}

// FuzzMessages checks for any bytes that nothing panics, that every packet with an id gets one
// answer, and that payloads lie within the datagram.
func FuzzMessages(f *testing.F) {
	whole := packetMsg(idAttr(7), attr(attrMark, 0, 0, 0x40, 0), attr(attrPayload, 1, 2, 3, 4))
	f.Add([]byte{})
	f.Add(whole)
	f.Add(whole[:len(whole)-3])
	f.Add(slices.Concat(whole, packetMsg(idAttr(8)), errorMsg(unix.ENOENT, msgVerdict)))
	f.Add(errorMsg(unix.EPERM, msgConfig))
	f.Add(packetMsg(idAttr(7), []byte{200, 0, attrPayload, 0}))
	f.Add(packetMsg(attr(attrPayload, 1)))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		packets := 0
		for rest := datagram; len(rest) > 0; {
			m, next, ok := nextMessage(rest)
			if !ok {
				break
			}
			if m.typ == msgPacket {
				if p, _ := decodePacket(m.body); p.hasID {
					packets++
				}
			}
			rest = next
		}
		a := testAnswerer(func(q Packet) Verdict {
			if len(q.Payload) > len(datagram) {
				t.Fatalf("payload of %d bytes in a datagram of %d", len(q.Payload), len(datagram))
			}
			return Verdict(len(q.Payload)) // all verdicts and undefined ones
		})
		a.datagram(datagram)
		a.closePending()
		if got := len(a.verdicts()); got != packets {
			t.Fatalf("%d verdicts for %d packets", got, packets)
		}
	})
}

// A denied packet is accepted with RejectMark only at hooks before postrouting and input, which decide
// it again if no chain answers it.
func TestRejectedPackets(t *testing.T) {
	const prerouting, input, forward, output, postrouting = 0, 1, 2, 3, 4
	for _, tt := range []struct {
		hook   byte
		reject uint32
		want   string
	}{
		{prerouting, 0x80, "7 1 0x4080"},
		{forward, 0x80, "7 1 0x4080"},
		{output, 0x80, "7 1 0x4080"},
		{input, 0x80, "7 0"},
		{postrouting, 0x80, "7 0"},
		{9, 0x80, "7 0"},
		{forward, 0, "7 0"},
	} {
		a := testAnswerer(func(Packet) Verdict { return Reject })
		a.rejectMark = tt.reject
		header := attr(attrPacketHeader, append(binary.BigEndian.AppendUint32(nil, 7), 0x08, 0x00, tt.hook)...)
		a.datagram(packetMsg(header, attr(attrMark, 0, 0, 0x41, 0)))

		if got := a.verdicts(); !slices.Equal(got, []string{tt.want}) {
			t.Errorf("hook %d, mark %#x: verdicts %v, want %s", tt.hook, tt.reject, got, tt.want)
		}
		if a.unsent != [2]uint64{verdictDrop: 1} {
			t.Errorf("hook %d, mark %#x: counts as %v, want a dropped packet", tt.hook, tt.reject, a.unsent)
		}
		m, _, _ := nextMessage(a.out)
		if got := a.counted(verdictOf(m)); got != verdictDrop {
			t.Errorf("hook %d, mark %#x: the sent verdict counts as %d", tt.hook, tt.reject, got)
		}
	}
}
