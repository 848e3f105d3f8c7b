package domains

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

const (
	// maxStreams bounds the TCP streams of one pod that are followed. A
	// connection is two.
	maxStreams = 64
	// maxBuffered bounds the bytes of one pod's streams that wait for the rest of
	// their message: two messages of the greatest length, or many common ones.
	maxBuffered = 128 << 10
	// maxAhead is the most segments that wait for one that was lost or
	// overtaken.
	maxAhead = 16
)

// flow is one direction of a connection.
type flow struct{ src, dst netip.AddrPort }

// streams are what one pod says and hears by TCP. A stream is followed from its
// SYN on. One that cannot be followed is given up: nothing is learned from it
// any more, its connection is not touched.
type streams struct {
	followed recent[flow, *stream]
	buffered int
	evicted  func() // is told of each stream that was given up
}

// stream puts the bytes of a flow in order.
type stream struct {
	start  uint32  // number of the first byte
	next   uint32  // number of the byte that is due
	unread []byte  // what came before it and is no whole message yet
	ahead  []piece // what came too early
}

// piece is a part of a stream.
type piece struct {
	seq  uint32 // number of its first byte
	data []byte
}

func newStreams(evicted func()) streams {
	return streams{followed: newRecent[flow, *stream](), evicted: evicted}
}

// feed calls message for each DNS message that is whole with s. The message is
// valid during the call.
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
		f.giveUp(key, st)
	}
	f.shrink()
}

// open returns the stream of s, nil if it is not followed. A SYN begins it anew,
// unless it came twice.
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

// shrink gives up the least recently used streams as long as there is too much.
func (f *streams) shrink() {
	for f.followed.len() > maxStreams || f.buffered > maxBuffered {
		key, st, _ := f.followed.oldest()
		f.giveUp(key, st)
	}
}

func (f *streams) giveUp(key flow, st *stream) {
	f.forget(key, st)
	f.evicted()
}

func (f *streams) forget(key flow, st *stream) {
	f.followed.remove(key)
	f.buffered -= st.size()
}

// size returns how many bytes the stream holds.
func (st *stream) size() int {
	n := len(st.unread)
	for _, p := range st.ahead {
		n += len(p.data)
	}
	return n
}

// receive reads what is due and keeps what is not. It reports whether the stream
// can still be followed.
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

// due tells whether no byte before p is missing. Numbers begin anew after the
// last one, so only their distance has a meaning.
func (st *stream) due(p piece) bool { return int32(p.seq-st.next) <= 0 }

// read reads what is new in a piece that is due.
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

// split calls message for each whole message in data and returns the rest. Each
// has its length in two bytes before it (RFC 1035, section 4.2.2).
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
