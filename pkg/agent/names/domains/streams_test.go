package domains

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// prefixed puts messages on a stream, each behind its length.
func prefixed(messages ...[]byte) []byte {
	var b []byte
	for _, m := range messages {
		b = binary.BigEndian.AppendUint16(b, uint16(len(m)))
		b = append(b, m...)
	}
	return b
}

// listener passes segments to streams and records the messages.
type listener struct {
	streams
	heard   []string
	evicted int
}

func newListener() *listener {
	l := &listener{}
	l.streams = newStreams(func() { l.evicted++ })
	return l
}

// segment returns a TCP segment from port to the resolver.
func segment(port uint16, seq uint32, syn bool, data string) packet.Segment {
	return packet.Segment{
		Packet: packet.Packet{
			Src: netip.AddrPortFrom(ip(podAt), port), Dst: netip.MustParseAddrPort(dns), Proto: packet.TCP,
		},
		Seq: seq, SYN: syn, Payload: []byte(data),
	}
}

func (l *listener) hear(s packet.Segment) {
	l.feed(s, func(m []byte) { l.heard = append(l.heard, string(m)) })
	clear(s.Payload) // it is valid only during the call
}

func (l *listener) expect(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(l.heard, want) {
		t.Errorf("got messages %q, want %q", l.heard, want)
	}
}

func TestStreamsAreSplitIntoMessages(t *testing.T) {
	const isn = 1<<32 - 5 // sequence numbers wrap in the first message
	stream := string(prefixed([]byte("first"), nil, []byte("second"), []byte("3")))
	opened := func() *listener {
		l := newListener()
		l.hear(segment(1, isn, true, ""))
		return l
	}
	part := func(from, to int) packet.Segment { return segment(1, isn+1+uint32(from), false, stream[from:to]) }
	want := []string{"first", "", "second", "3"}

	t.Run("whole", func(t *testing.T) {
		l := opened()
		l.hear(part(0, len(stream)))
		l.expect(t, want...)
	})
	t.Run("with the SYN", func(t *testing.T) {
		l := newListener()
		l.hear(segment(1, isn, true, stream))
		l.expect(t, want...)
	})
	t.Run("byte by byte", func(t *testing.T) {
		l := opened()
		for i := range stream {
			l.hear(part(i, i+1))
		}
		l.expect(t, want...)
	})
	for cut := range stream {
		l := opened()
		l.hear(part(0, cut))
		l.hear(part(cut, len(stream)))
		l.expect(t, want...)

		l = opened() // the second part comes first
		l.hear(part(cut, len(stream)))
		l.hear(part(0, cut))
		l.expect(t, want...)

		l = opened() // everything twice, and overlapping
		l.hear(part(0, cut))
		l.hear(segment(1, isn, true, ""))
		l.hear(part(0, cut))
		l.hear(part(cut/2, len(stream)))
		l.hear(part(0, len(stream)))
		l.expect(t, want...)
		if l.buffered != 0 {
			t.Errorf("split at %d: %d bytes stay buffered", cut, l.buffered)
		}
	}
}

// TestReorderedSegments shuffles and repeats the segments of a stream.
func TestReorderedSegments(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		isn := random.Uint32()
		var messages []string
		var stream []byte
		for range 1 + random.IntN(5) {
			m := strings.Repeat(string(rune('a'+len(messages))), random.IntN(400))
			messages = append(messages, m)
			stream = append(stream, prefixed([]byte(m))...)
		}
		var pieces []packet.Segment
		for range maxAhead / 2 {
			from, to := random.IntN(len(stream)), random.IntN(len(stream)+1)
			if from < to { // a retransmission
				pieces = append(pieces, segment(1, isn+1+uint32(from), false, string(stream[from:to])))
			}
		}
		for from := 0; from < len(stream); {
			to := min(from+1+random.IntN(len(stream)/4+1), len(stream))
			pieces = append(pieces, segment(1, isn+1+uint32(from), false, string(stream[from:to])))
			from = to
		}
		if len(pieces) > maxAhead {
			continue
		}
		random.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
		l := newListener()
		l.hear(segment(1, isn, true, ""))
		for _, p := range pieces {
			l.hear(p)
		}
		l.expect(t, messages...)
		if l.buffered != l.sum() || l.evicted != 0 {
			t.Errorf("seed %d: %d bytes are counted, %d buffered, %d streams dropped", seed, l.buffered, l.sum(), l.evicted)
		}
	}
}

// sum returns the number of buffered bytes.
func (f *streams) sum() int {
	n := 0
	for e := f.followed.order.Front(); e != nil; e = e.Next() {
		n += e.Value.(*entry[flow, *stream]).value.size()
	}
	return n
}

func TestStreamWithoutSYN(t *testing.T) {
	l := newListener()
	l.hear(segment(1, 1000, false, string(prefixed([]byte("message")))))
	l.expect(t)
	if l.followed.len() != 0 {
		t.Error("a stream without a SYN is followed")
	}
}

func TestReusedPort(t *testing.T) {
	l := newListener()
	l.hear(segment(1, 1000, true, ""))
	l.hear(segment(1, 1001, false, "\x00\x09unfin"))
	l.hear(segment(1, 5000, true, ""))
	l.hear(segment(1, 5001, false, "\x00\x01x"))
	l.expect(t, "x")
	if l.buffered != 0 || l.evicted != 0 {
		t.Errorf("%d bytes of the first stream are buffered, %d streams dropped", l.buffered, l.evicted)
	}
}

func TestStreamWithLostSegmentIsDropped(t *testing.T) {
	l := newListener()
	l.hear(segment(1, 0, true, ""))
	l.hear(segment(2, 0, true, ""))
	for i := range uint32(maxAhead + 1) {
		l.hear(segment(1, 100+i, false, "x")) // the bytes before 100 are lost
	}
	if l.evicted != 1 || l.buffered != 0 {
		t.Errorf("%d streams dropped, %d bytes buffered", l.evicted, l.buffered)
	}
	l.hear(segment(1, 1, false, "\x00\x01x"))
	l.hear(segment(2, 1, false, "\x00\x01y"))
	l.expect(t, "y")
}

func TestLeastRecentlyUsedStreamIsDropped(t *testing.T) {
	l := newListener()
	for port := range uint16(maxStreams) {
		l.hear(segment(port, 0, true, ""))
	}
	l.hear(segment(0, 1, false, "\x00\x01a"))
	l.hear(segment(maxStreams, 0, true, ""))
	l.hear(segment(0, 4, false, "\x00\x01b"))
	l.hear(segment(1, 1, false, "\x00\x01c"))
	l.hear(segment(2, 1, false, "\x00\x01d"))
	l.expect(t, "a", "b", "d")
	if l.evicted != 1 {
		t.Errorf("%d streams dropped, want 1", l.evicted)
	}
}

// TestBufferIsBounded has streams with long messages that never end.
func TestBufferIsBounded(t *testing.T) {
	l := newListener()
	const part = 10000
	begun := "\xff\xff" + strings.Repeat("x", part)
	for port := range uint16(20) {
		l.hear(segment(port, 0, true, ""))
		l.hear(segment(port, 1, false, begun))
		l.hear(segment(port, 100000, false, begun)) // out of order
		if l.buffered > maxBuffered || l.buffered != l.sum() {
			t.Fatalf("%d bytes are counted, %d buffered", l.buffered, l.sum())
		}
	}
	if l.evicted == 0 || l.buffered < maxBuffered/2 {
		t.Errorf("%d streams dropped, %d bytes buffered", l.evicted, l.buffered)
	}
}

// TestLongestMessage has a message of the maximum length in segments of usual size.
func TestLongestMessage(t *testing.T) {
	message := strings.Repeat("x", 1<<16-1)
	stream := string(prefixed([]byte(message)))
	l := newListener()
	l.hear(segment(1, 0, true, ""))
	for from := 0; from < len(stream); from += 1400 {
		l.hear(segment(1, 1+uint32(from), false, stream[from:min(from+1400, len(stream))]))
	}
	l.expect(t, message)
}

func TestAnswersByTCP(t *testing.T) {
	f := newFixture(t)
	const name = "api.example.test"
	ask := prefixed(question(7, name, typeA), question(8, name, typeAAAA))
	hear := prefixed(reply(8, name, typeAAAA, at(name, "2001:db8::1", 300)), reply(7, name, typeA, at(name, "192.0.2.1", 300)))
	f.Observe(tcp(podAt+":4000", dns, 100, true, nil))
	f.Observe(tcp(dns, podAt+":4000", 900, true, nil))
	f.Observe(tcp(podAt+":4000", dns, 101, false, ask[:20]))
	f.Observe(tcp(podAt+":4000", dns, 121, false, ask[20:]))
	f.Observe(tcp(dns, podAt+":4000", 941, false, hear[40:]))
	f.expect("192.0.2.1", "")
	f.Observe(tcp(dns, podAt+":4000", 901, false, hear[:40]))
	f.expect("2001:db8::1", name)
	f.expect("192.0.2.1", name)
}

// FuzzStreams splits a stream into segments and reorders them as the input says. The
// messages must be the first ones of the stream.
func FuzzStreams(f *testing.F) {
	f.Add([]byte("\x00\x03abc\x00\x00\x00\x02de"), uint32(0), []byte{0, 5, 5, 9, 2, 3})
	f.Add([]byte("\x00\x03abc\x00"), uint32(1<<32-3), []byte{3, 3, 0, 3, 0, 3})
	f.Add([]byte("\xff\xffabc"), uint32(9), []byte{1, 1, 2, 1})
	f.Fuzz(func(t *testing.T, stream []byte, isn uint32, pieces []byte) {
		l := newListener()
		l.hear(segment(1, isn, true, ""))
		for ; len(pieces) >= 2; pieces = pieces[2:] {
			from := min(int(pieces[0]), len(stream))
			to := min(from+int(pieces[1]), len(stream))
			l.hear(segment(1, isn+1+uint32(from), false, string(stream[from:to])))
			if l.buffered != l.sum() || l.buffered > maxBuffered {
				t.Fatalf("%d bytes are counted, %d buffered", l.buffered, l.sum())
			}
		}
		var want []string
		split(stream, func(m []byte) { want = append(want, string(m)) })
		if len(l.heard) > len(want) || !slices.Equal(l.heard, want[:len(l.heard)]) {
			t.Fatalf("got %q, want a prefix of %q", l.heard, want)
		}
	})
}
