package queue

import (
	"net/netip"
	"time"
)

// deferred reports whether v is no verdict yet.
func (v Verdict) deferred() bool { return v == Defer || v == DeferLong }

// pendingPacket is a packet whose verdict was deferred.
type pendingPacket struct {
	id, mark uint32
	toHost   bool
	link     uint32
	long     bool // in the room of DeferLong
	source   netip.Addr
	payload  []byte    // a copy of our own
	until    time.Time // when the Handler has to decide
}

// addPending keeps p until the Handler is called again. It uses the memory of earlier
// pending packets again.
func (a *answerer) addPending(p packetMessage, source netip.Addr, long bool) {
	now := time.Now()
	until := now.Add(maxPendingTime)
	if long {
		until = now.Add(longPendingTime)
		a.long++
	}
	n := len(a.pending)
	if n < cap(a.pending) {
		a.pending = a.pending[:n+1]
	} else {
		a.pending = append(a.pending, pendingPacket{})
	}
	h := &a.pending[n]
	h.id, h.mark, h.toHost, h.link, h.long, h.source, h.until = p.id, p.mark, p.toHost, p.link, long, source, until
	h.payload = append(h.payload[:0], p.payload...)
	if n == 0 {
		a.retryAt = now.Add(retryEvery)
	}
	a.metrics.pendingTotal.Inc()
	a.metrics.pendingNow.Inc()
}

// mayDefer reports whether there is room for one more packet of a source with this verdict.
// Attackers choose packets: they must not fill our memory.
func (a *answerer) mayDefer(verdict Verdict, source netip.Addr) bool {
	if verdict == DeferLong {
		return a.long < maxPendingLong
	}
	others := len(a.pending) - a.long
	if others < unsharedPending {
		return true
	}
	return others < maxPending && a.pendingOf(source) < maxPendingEach
}

// pendingOf returns how many packets of a source have room as Defer.
func (a *answerer) pendingOf(source netip.Addr) (n int) {
	for i := range a.pending {
		if h := &a.pending[i]; h.source == source && !h.long {
			n++
		}
	}
	return n
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
		verdict := a.decide(Packet{Payload: h.payload, ToHost: h.toHost, Link: h.link, Marked: a.marked(h.mark), Pending: true, Last: last})
		if verdict.deferred() && !last {
			a.pending[kept], a.pending[i] = a.pending[i], a.pending[kept] // a swap, so that no room is lost
			kept++
			continue
		}
		if h.long {
			a.long--
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
	a.pending, a.long, a.retryAt = nil, 0, time.Time{}
}
