package policy

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"net/netip"
	"slices"
)

// Endpoints map addresses to pods. They are immutable: an edit makes new ones that share the
// unchanged chunks, so a change costs the same among a thousand addresses and among a million. The
// zero Endpoints are empty.
type Endpoints struct {
	chunks []*chunk // a power of two of them
	len    int
}

// chunk is a group of shards that share one pointer, so a change of a long table copies few
// pointers.
type chunk [chunkLen]shard

// shard holds the addresses of one hash, in no order.
type shard []shardEntry

type shardEntry struct {
	addr     netip.Addr
	endpoint *Endpoint
}

// perShard is the most addresses a shard has on average: few enough to compare
// one by one, and to copy at a change.
const perShard = 8

const chunkLen = 64

// NewEndpoints returns the endpoints of m.
func NewEndpoints(m map[netip.Addr]*Endpoint) Endpoints {
	var none Endpoints
	edit := none.Edit()
	for addr, e := range m {
		edit.Set(addr, e)
	}
	return edit.Done()
}

// Len returns the number of addresses.
func (e *Endpoints) Len() int { return e.len }

// At returns the endpoint at a, nil if there is none.
func (e *Endpoints) At(a netip.Addr) *Endpoint {
	if e.len == 0 {
		return nil
	}
	c, n := place(a, len(e.chunks))
	s := e.chunks[c][n]
	for i := range s {
		if s[i].addr == a {
			return s[i].endpoint
		}
	}
	return nil
}

// All yields the addresses and their endpoints in no order.
func (e *Endpoints) All() iter.Seq2[netip.Addr, *Endpoint] {
	return func(yield func(netip.Addr, *Endpoint) bool) {
		for _, c := range e.chunks {
			for _, s := range c {
				for _, p := range s {
					if !yield(p.addr, p.endpoint) {
						return
					}
				}
			}
		}
	}
}

// place returns the chunk of a and the shard in it. Addresses of one range differ only in their
// last bits; the multiplication (Fibonacci hashing) carries these to the first ones.
func place(a netip.Addr, chunks int) (chunk, shard int) {
	var x uint64
	if a.Is4() {
		b := a.As4()
		x = uint64(binary.BigEndian.Uint32(b[:]))
	} else {
		b := a.As16()
		x = binary.BigEndian.Uint64(b[:8]) ^ bits.RotateLeft64(binary.BigEndian.Uint64(b[8:]), 17)
	}
	x = x * 0x9e3779b97f4a7c15 >> 32
	return int(x / chunkLen & uint64(chunks-1)), int(x % chunkLen)
}

// Edit starts a copy-on-write edit of e. It does not change e.
func (e *Endpoints) Edit() *EndpointsEdit {
	if len(e.chunks) == 0 {
		return newEdit(1)
	}
	return &EndpointsEdit{
		chunks: slices.Clone(e.chunks),
		own:    make([]*[chunkLen]bool, len(e.chunks)),
		len:    e.len,
	}
}

// EndpointsEdit is an edit in progress. Only one goroutine may use it.
type EndpointsEdit struct {
	chunks []*chunk
	own    []*[chunkLen]bool // the shards that this edit has copied; nil for shared chunks
	len    int
}

// newEdit returns an edit of no endpoints.
func newEdit(chunks int) *EndpointsEdit {
	e := &EndpointsEdit{chunks: make([]*chunk, chunks), own: make([]*[chunkLen]bool, chunks)}
	for i := range chunks {
		e.chunks[i], e.own[i] = new(chunk), new([chunkLen]bool)
	}
	return e
}

// At returns the endpoint at a as it is now, nil if there is none.
func (e *EndpointsEdit) At(a netip.Addr) *Endpoint {
	now := Endpoints{e.chunks, e.len}
	return now.At(a)
}

// Set puts endpoint at a; nil removes the one there.
func (e *EndpointsEdit) Set(a netip.Addr, endpoint *Endpoint) {
	s := e.shard(a)
	at := slices.IndexFunc(*s, func(p shardEntry) bool { return p.addr == a })
	switch {
	case at >= 0 && endpoint != nil:
		(*s)[at].endpoint = endpoint
	case at >= 0:
		*s = slices.Delete(*s, at, at+1)
		e.len--
	case endpoint != nil:
		*s = append(*s, shardEntry{a, endpoint})
		e.len++
		if e.len > perShard*chunkLen*len(e.chunks) {
			e.grow()
		}
	}
}

// shard returns the shard of a for writing.
func (e *EndpointsEdit) shard(a netip.Addr) *shard {
	c, n := place(a, len(e.chunks))
	if e.own[c] == nil {
		copied := *e.chunks[c]
		e.chunks[c], e.own[c] = &copied, new([chunkLen]bool)
	}
	s := &e.chunks[c][n]
	if !e.own[c][n] {
		*s = append(make(shard, 0, len(*s)+1), *s...)
		e.own[c][n] = true
	}
	return s
}

// grow doubles the chunks.
func (e *EndpointsEdit) grow() {
	old := e.Done()
	*e = *newEdit(2 * len(e.chunks))
	for a, endpoint := range old.All() {
		s := e.shard(a)
		*s = append(*s, shardEntry{a, endpoint})
	}
	e.len = old.len
}

// Done returns the result. The edit must not be used any more.
func (e *EndpointsEdit) Done() Endpoints {
	return Endpoints{e.chunks, e.len}
}
