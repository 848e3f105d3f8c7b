package queue

import (
	"net/netip"
	"time"
)

// heldPacket is a packet the Judge could not decide yet.
type heldPacket struct {
	id, mark uint32
	toHost   bool
	source   netip.Addr
	payload  []byte    // a copy of our own
	until    time.Time // when the Judge is asked for the last time
}

// hold keeps p until the Judge is asked again. The room of packets held earlier
// is used again.
func (a *answerer) hold(p packet, source netip.Addr) {
	now := time.Now()
	n := len(a.held)
	if n < cap(a.held) {
		a.held = a.held[:n+1]
	} else {
		a.held = append(a.held, heldPacket{})
	}
	h := &a.held[n]
	h.id, h.mark, h.toHost, h.source, h.until = p.id, p.mark, p.toHost, source, now.Add(holdTime)
	h.payload = append(h.payload[:0], p.payload...)
	if n == 0 {
		a.askAt = now.Add(askEvery)
	}
	a.metrics.heldTotal.Inc()
	a.metrics.heldNow.Inc()
}

// mayHold reports whether a source has room for one more packet.
func (a *answerer) mayHold(source netip.Addr) bool {
	if len(a.held) < freeHeld {
		return true
	}
	n := 0
	for i := range a.held {
		if a.held[i].source == source {
			n++
		}
	}
	return n < maxEach
}

// askHeld asks about the held packets once more if it is time to.
func (a *answerer) askHeld(now time.Time) {
	if a.askAt.IsZero() || now.Before(a.askAt) {
		return
	}
	a.askAllHeld(func(h *heldPacket) bool { return !now.Before(h.until) })
	if len(a.held) > 0 {
		a.askAt = now.Add(askEvery)
	}
}

// closeHeld answers every held packet. From now on none is held.
func (a *answerer) closeHeld() {
	a.closing = true
	a.askAllHeld(func(*heldPacket) bool { return true })
}

// askAllHeld asks about every held packet, in the order of their arrival, and
// keeps those that remain undecided.
func (a *answerer) askAllHeld(last func(*heldPacket) bool) {
	kept := 0
	for i := range a.held {
		h := &a.held[i]
		last := last(h)
		verdict := a.ask(Question{Payload: h.payload, ToHost: h.toHost, Marked: a.marked(h.mark), Last: last})
		if verdict == Hold && !last {
			a.held[kept], a.held[i] = a.held[i], a.held[kept] // a swap, so that no room is lost
			kept++
			continue
		}
		a.answer(h.id, h.mark, verdict)
		a.metrics.heldNow.Dec()
	}
	a.held = a.held[:kept]
	if kept == 0 {
		a.askAt = time.Time{}
	}
}

// forgetHeld is the end of an answerer whose queue is unbound: the kernel drops what
// it holds.
func (a *answerer) forgetHeld() {
	a.metrics.heldNow.Sub(float64(len(a.held)))
	a.held, a.askAt = nil, time.Time{}
}
