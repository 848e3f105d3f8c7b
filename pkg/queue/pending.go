package queue

import (
	"net/netip"
	"time"
)

// pendingPacket is a packet whose verdict was deferred.
type pendingPacket struct {
	id, mark uint32
	toHost   bool
	source   netip.Addr
	payload  []byte    // a copy of our own
	until    time.Time // when the Handler has to decide
}

// addPending keeps p until the Handler is called again. It uses the memory of earlier
// pending packets again.
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

// retryPending has the pending packets decided again if that is due.
func (a *answerer) retryPending(now time.Time) {
	if a.retryAt.IsZero() || now.Before(a.retryAt) {
		return
	}
	a.retryAllPending(func(h *pendingPacket) bool { return !now.Before(h.until) })
	if len(a.pending) > 0 {
		a.retryAt = now.Add(retryEvery)
	}
}

// closePending answers every pending packet. From now on no verdict is deferred.
func (a *answerer) closePending() {
	a.closing = true
	a.retryAllPending(func(*pendingPacket) bool { return true })
}

// retryAllPending calls the Handler for every pending packet, in the order of their
// arrival, and keeps those whose verdict is deferred again.
func (a *answerer) retryAllPending(last func(*pendingPacket) bool) {
	kept := 0
	for i := range a.pending {
		h := &a.pending[i]
		last := last(h)
		verdict := a.decide(Packet{Payload: h.payload, ToHost: h.toHost, Marked: a.marked(h.mark), Pending: true, Last: last})
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

// forgetPending is the end of an answerer whose queue is unbound: the kernel drops the
// packets.
func (a *answerer) forgetPending() {
	a.metrics.pendingNow.Sub(float64(len(a.pending)))
	a.pending, a.retryAt = nil, time.Time{}
}
