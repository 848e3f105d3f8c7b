package queue

import (
	"net/netip"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// deferred reports whether v postpones the verdict.
func (v Verdict) deferred() bool { return v == Defer || v == DeferLong }

// pendingPacket is a packet whose verdict was deferred.
type pendingPacket struct {
	packetMessage      // with a copy of the payload
	long          bool // its verdict was DeferLong
	source        netip.Addr
	until         time.Time // when the Handler must decide
}

// addPending keeps p until the Handler is called again. It reuses the memory of earlier pending
// packets.
func (a *answerer) addPending(p packetMessage, source netip.Addr, long bool) {
	now := time.Now()
	until := now.Add(bounds.PacketWait)
	if long {
		until = now.Add(bounds.LongWait)
		a.longPending++
	}
	n := len(a.pending)
	if n < cap(a.pending) {
		a.pending = a.pending[:n+1]
	} else {
		a.pending = append(a.pending, pendingPacket{})
	}
	h := &a.pending[n]
	room := h.payload[:0]
	h.packetMessage, h.long, h.source, h.until = p, long, source, until
	h.payload = append(room, p.payload...)
	if n == 0 {
		a.retryAt = now.Add(retryFewEvery)
	}
	a.metrics.pended.Inc()
	a.metrics.pendingNow.Inc()
}

// mayDefer reports whether there is room for another pending packet of this source. The room is
// bounded, so that an attacker cannot fill the agent's memory.
func (a *answerer) mayDefer(verdict Verdict, source netip.Addr) bool {
	if verdict == DeferLong {
		return a.longPending < bounds.LongWaiting
	}
	shortPending := len(a.pending) - a.longPending
	if shortPending < unsharedPending {
		return true
	}
	return shortPending < maxPending && a.pendingOf(source) < maxPendingEach
}

// pendingOf returns how many packets of a source are pending with the verdict Defer.
func (a *answerer) pendingOf(source netip.Addr) (n int) {
	for i := range a.pending {
		if h := &a.pending[i]; h.source == source && !h.long {
			n++
		}
	}
	return n
}

// retryPending decides the pending packets again if that is due.
func (a *answerer) retryPending(now time.Time) {
	if a.retryAt.IsZero() || now.Before(a.retryAt) {
		return
	}
	a.retryAllPending(func(h *pendingPacket) bool { return !now.Before(h.until) })
	switch n := len(a.pending); {
	case n > fewPending:
		a.retryAt = now.Add(retryEvery)
	case n > 0:
		a.retryAt = now.Add(retryFewEvery)
	}
}

// closePending answers all pending packets, and lets no further packet become pending.
func (a *answerer) closePending() {
	a.closing = true
	a.retryAllPending(func(*pendingPacket) bool { return true })
}

// retryAllPending calls the Handler for each pending packet, in the order of arrival, and keeps
// those whose verdict is deferred again. last reports whether a packet must be decided now.
func (a *answerer) retryAllPending(last func(*pendingPacket) bool) {
	kept := 0
	for i := range a.pending {
		h := &a.pending[i]
		last := last(h)
		q := a.query(&h.packetMessage)
		q.Pending, q.Last = true, last
		verdict := a.decide(q)
		if verdict.deferred() && !last {
			a.pending[kept], a.pending[i] = a.pending[i], a.pending[kept] // a swap keeps the memory of both payloads
			kept++
			continue
		}
		if h.long {
			a.longPending--
		}
		a.answer(&h.packetMessage, verdict)
		a.metrics.pendingNow.Dec()
	}
	a.pending = a.pending[:kept]
	if kept == 0 {
		a.retryAt = time.Time{}
	}
}

// forgetPending discards the pending packets when the queue is unbound: the kernel has dropped
// them.
func (a *answerer) forgetPending() {
	a.metrics.pendingNow.Sub(float64(len(a.pending)))
	a.pending, a.longPending, a.retryAt = nil, 0, time.Time{}
}
