package queue

import (
	"net/netip"
	"time"
)

// pendingPacket is a packet the Handler could not decide yet.
type pendingPacket struct {
	id, mark uint32
	toHost   bool
	source   netip.Addr
	payload  []byte    // a copy of our own
	until    time.Time // when the Handler is asked for the last time
}

// hold keeps p until the Handler is asked again. The room of packets held earlier
// is used again.
func (a *answerer) addPending(p packetMessage, source netip.Addr) {
	now := time.Now()
	n := len(a.pending)
	if n < cap(a.pending) {
		a.pending = a.pending[:n+1]
	} else {
		a.pending = append(a.pending, pendingPacket{})
	}
	h := &a.pending[n]
	h.id, h.mark, h.toHost, h.source, h.until = p.id, p.mark, p.toHost, source, now.Add(maxPendingTime)
	h.payload = append(h.payload[:0], p.payload...)
	if n == 0 {
		a.retryAt = now.Add(retryEvery)
	}
	a.metrics.pendingTotal.Inc()
	a.metrics.pendingNow.Inc()
}

// mayDefer reports whether a source has room for one more packet.
func (a *answerer) mayDefer(source netip.Addr) bool {
	if len(a.pending) < unsharedPending {
		return true
	}
	n := 0
	for i := range a.pending {
		if a.pending[i].source == source {
			n++
		}
	}
	return n < maxPendingEach
}

// retryPending asks about the held packets once more if it is time to.
func (a *answerer) retryPending(now time.Time) {
	if a.retryAt.IsZero() || now.Before(a.retryAt) {
		return
	}
	a.retryAllPending(func(h *pendingPacket) bool { return !now.Before(h.until) })
	if len(a.pending) > 0 {
		a.retryAt = now.Add(retryEvery)
	}
}

// closePending answers every held packet. From now on none is held.
func (a *answerer) closePending() {
	a.closing = true
	a.retryAllPending(func(*pendingPacket) bool { return true })
}

// retryAllPending asks about every held packet, in the order of their arrival, and
// keeps those that remain undecided.
func (a *answerer) retryAllPending(last func(*pendingPacket) bool) {
	kept := 0
	for i := range a.pending {
		h := &a.pending[i]
		last := last(h)
		verdict := a.decide(Packet{Payload: h.payload, ToHost: h.toHost, Marked: a.marked(h.mark), Last: last})
		if verdict == Defer && !last {
			a.pending[kept], a.pending[i] = a.pending[i], a.pending[kept] // a swap, so that no room is lost
			kept++
			continue
		}
		a.answer(h.id, h.mark, verdict)
		a.metrics.pendingNow.Dec()
	}
	a.pending = a.pending[:kept]
	if kept == 0 {
		a.retryAt = time.Time{}
	}
}

// forgetPending is the end of an answerer whose queue is unbound: the kernel drops what
// it holds.
func (a *answerer) forgetPending() {
	a.metrics.pendingNow.Sub(float64(len(a.pending)))
	a.pending, a.retryAt = nil, time.Time{}
}
