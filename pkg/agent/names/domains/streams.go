package domains

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

const (
	// maxStreams bounds the TCP streams that are followed for one pod. A
	// connection has two.
	maxStreams = 64
	// maxBuffered bounds the buffered bytes of incomplete messages of one pod: two
	// messages of the maximum length, or many usual ones.
	maxBuffered = 128 << 10
	// maxAhead is the largest number of segments of a stream that are buffered
	// because an earlier one was lost or reordered.
	maxAhead = 16
)

// flow is one direction of a connection.
type flow struct{ src, dst netip.AddrPort }

// streams are the TCP streams from and to one pod. A stream is followed from its SYN. Once it
// cannot be followed, nothing more is learned from it; its connection is not affected.
type streams struct {
	followed recent[flow, *stream]
	buffered int
	evicted  func() // called for each stream that is dropped
}

// stream puts the bytes of a flow in order.
type stream struct {
	start  uint32  // sequence number of the first byte
	next   uint32  // sequence number of the next byte
	unread []byte  // the bytes before next that are not a complete message yet
	ahead  []piece // segments that arrived early
}

// piece is a part of a stream.
type piece struct {
	seq  uint32 // sequence number of its first byte
	data []byte
}

func newStreams(evicted func()) streams {
	return streams{followed: newRecent[flow, *stream](), evicted: evicted}
}

// feed calls message for each DNS message that s completes. The message is valid only during
// the call.
func (f *streams) feed(s packet.Segment, message func([]byte)) {
	key := flow{s.Src, s.Dst}
	st := f.open(key, s)
	if st == nil || len(s.Payload) == 0 {
		return
	}
	f.followed.use(key)
	arrived := piece{s.Seq, s.Payload}
	if s.SYN {
		arrived.seq++
	}
	before := st.size()
	ok := st.receive(arrived, message)
	f.buffered += st.size() - before
	if !ok {
		f.drop(key, st)
	}
	f.shrink()
}

// open returns the stream of s, nil if it is not followed. A SYN starts a new stream
// unless it is a retransmission.
func (f *streams) open(key flow, s packet.Segment) *stream {
	st, ok := f.followed.get(key)
	first := s.Seq + 1
	if !s.SYN || ok && st.start == first {
		return st
	}
	if ok {
		f.forget(key, st)
	}
	st = &stream{start: first, next: first}
	f.followed.put(key, st)
	f.shrink()
	return st
}

// shrink drops the least recently used streams until the bounds hold.
func (f *streams) shrink() {
	for f.followed.len() > maxStreams || f.buffered > maxBuffered {
		key, st, _ := f.followed.oldest()
		f.drop(key, st)
	}
}

func (f *streams) drop(key flow, st *stream) {
	f.forget(key, st)
	f.evicted()
}

func (f *streams) forget(key flow, st *stream) {
	f.followed.remove(key)
	f.buffered -= st.size()
}

// size returns the number of buffered bytes.
func (st *stream) size() int {
	n := len(st.unread)
	for _, p := range st.ahead {
		n += len(p.data)
	}
	return n
}

// receive reads p if it is next and buffers it otherwise. It reports whether the
// stream can still be followed.
func (st *stream) receive(p piece, message func([]byte)) bool {
	if !st.due(p) {
		p.data = slices.Clone(p.data)
		st.ahead = append(st.ahead, p)
		return len(st.ahead) <= maxAhead
	}
	st.read(p, message)
	for i := slices.IndexFunc(st.ahead, st.due); i >= 0; i = slices.IndexFunc(st.ahead, st.due) {
		p := st.ahead[i]
		st.ahead = slices.Delete(st.ahead, i, i+1)
		st.read(p, message)
	}
	return true
}

// due reports whether no byte before p is missing. Sequence numbers wrap, so only their
// distance is compared.
func (st *stream) due(p piece) bool { return int32(p.seq-st.next) <= 0 }

// read reads the new bytes of a piece that is due.
func (st *stream) read(p piece, message func([]byte)) {
	seen := uint64(st.next - p.seq)
	if seen >= uint64(len(p.data)) {
		return
	}
	data := p.data[seen:]
	st.next += uint32(len(data))
	if len(st.unread) > 0 {
		st.unread = append(st.unread, data...)
		data = st.unread
	}
	rest := split(data, message)
	if len(st.unread) == 0 || len(rest) < len(data) {
		st.unread = append([]byte(nil), rest...) // a copy: data is not ours, or large
	}
}

// split calls message for each complete message in data and returns the rest. Two
// bytes before each message hold its length (RFC 1035, section 4.2.2).
func split(data []byte, message func([]byte)) (rest []byte) {
	const prefix = 2
	for len(data) >= prefix {
		end := prefix + int(binary.BigEndian.Uint16(data))
		if len(data) < end {
			break
		}
		message(data[prefix:end])
		data = data[end:]
	}
	return data
}
