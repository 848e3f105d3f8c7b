package queue

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// answerer decides the packets in the datagrams of one queue and encodes a verdict message for
// each. It does not access the socket. It belongs to one goroutine.
type answerer struct {
	number          uint16
	handler         Handler
	acceptMark      uint32
	classMark       uint32
	rejectMark      uint32
	establishedMark uint32
	failOpenOnPanic bool
	source          func(payload []byte) netip.Addr
	metrics         *metrics
	logger          klog.Logger

	out         []byte    // verdicts not yet sent
	unsent      [2]uint64 // their number, by verdictDrop and verdictAccept
	pending     []pendingPacket
	longPending int       // how many of them have the verdict DeferLong
	retryAt     time.Time // when to retry pending packets; zero if there are none
	closing     bool      // no further packet can become pending
	failure     error     // the kernel refused our configuration or a verdict

	configured bool // the kernel has acknowledged our configuration

	panicLog throttle
}

func newAnswerer(cfg Config, number uint16, handler Handler, m *metrics, logger klog.Logger) *answerer {
	return &answerer{
		number:          number,
		handler:         handler,
		acceptMark:      cfg.AcceptMark,
		classMark:       cfg.ClassMark,
		rejectMark:      cfg.RejectMark,
		establishedMark: cfg.EstablishedMark,
		failOpenOnPanic: cfg.FailOpenOnPanic,
		source:          cfg.Source,
		metrics:         m,
		logger:          logger,
	}
}

// datagram answers the packets of one datagram.
func (a *answerer) datagram(b []byte) {
	for len(b) > 0 {
		m, rest, ok := nextMessage(b)
		if !ok {
			a.metrics.malformed.Inc()
			return
		}
		switch m.typ {
		case msgPacket:
			a.packet(m)
		case unix.NLMSG_ERROR:
			a.kernelError(m.body)
		case unix.NLMSG_NOOP:
		default:
			a.metrics.malformed.Inc()
		}
		b = rest
	}
}

// marked reports whether mark contains the bit of accepted packets.
func (a *answerer) marked(mark uint32) bool { return mark&a.acceptMark != 0 }

// packet answers one packet or makes it pending.
func (a *answerer) packet(m message) {
	p, ok := decodePacket(m.body)
	if !ok || m.cut {
		a.metrics.malformed.Inc()
		if p.hasID {
			a.answer(&p, Drop)
		}
		return
	}
	q := a.query(&p)
	q.Last = a.closing
	verdict := a.decide(q)
	if !q.Last && verdict.deferred() {
		source := a.sourceOf(p)
		if a.mayDefer(verdict, source) {
			a.addPending(p, source, verdict == DeferLong)
			return
		}
		q.Last = true
		verdict = a.decide(q)
	}
	a.answer(&p, verdict)
}

// query returns what the Handler decides about p.
func (a *answerer) query(p *packetMessage) Packet {
	marked, established := a.marked(p.mark), p.mark&a.establishedMark != 0
	return Packet{
		Payload: p.payload, ToHost: p.toHost(), Link: p.link, OutLink: p.outLink, Answerable: p.answerable(),
		Marked: marked && !established, Established: established, Reply: established && !marked,
	}
}

// sourceOf returns the source of p by Config.Source.
func (a *answerer) sourceOf(p packetMessage) netip.Addr {
	if a.source == nil {
		return netip.Addr{}
	}
	return a.source(p.payload)
}

// decide calls the Handler and recovers from its panics.
func (a *answerer) decide(q Packet) (verdict Verdict) {
	defer func() {
		if r := recover(); r != nil {
			verdict = a.panicked(r)
		}
	}()
	return a.handler(q)
}

func (a *answerer) panicked(r any) Verdict {
	a.metrics.panics.Inc()
	if a.panicLog.allow(time.Now()) {
		a.logger.Error(fmt.Errorf("panic: %v", r), "Handler panicked", "queue", a.number, "stack", string(debug.Stack()))
	}
	if a.failOpenOnPanic {
		return Accept
	}
	return Drop
}

// answer appends the verdict on one packet to the verdicts to be sent.
func (a *answerer) answer(p *packetMessage, v Verdict) {
	verdict, mark := uint32(verdictAccept), p.mark
	switch {
	case v == Accept || v == AcceptClass:
		mark = mark&^(a.classMark|a.establishedMark) | a.acceptMark
		if v == AcceptClass {
			mark |= a.classMark
		}
	case v == Reject && p.answerable() && a.rejectMark != 0 && a.acceptMark != 0:
		mark = mark&^a.acceptMark | a.rejectMark
	default:
		verdict = verdictDrop
	}
	a.unsent[a.counted(verdict, mark)]++
	if verdict == verdictDrop || a.acceptMark == 0 {
		a.out = appendVerdict(a.out, a.number, p.id, verdict, nil)
		return
	}
	a.out = appendVerdict(a.out, a.number, p.id, verdict, &mark)
}

// counted returns the verdict as which a packet counts: one that the table answers is dropped there.
func (a *answerer) counted(verdict, mark uint32) uint32 {
	if a.rejectMark != 0 && mark&(a.acceptMark|a.rejectMark) == a.rejectMark {
		return verdictDrop
	}
	return verdict
}

// kernelError handles the kernel's answer to one of our messages.
func (a *answerer) kernelError(body []byte) {
	errno, about, ok := decodeError(body)
	switch {
	case !ok:
		a.metrics.malformed.Inc()
	case errno == 0 && about == msgConfig:
		a.configured = true
	case errno == 0: // acknowledged
	case about == msgConfig:
		a.failure = fmt.Errorf("configure queue %d: %w", a.number, errno)
	case errors.Is(errno, unix.ENOENT):
		// The packet was dropped while it waited: its device went down, or the table that queued
		// it was deleted.
		a.metrics.gone.Inc()
	default:
		// The packet would wait forever: only unbinding the queue frees it.
		a.metrics.refused.Inc()
		a.failure = fmt.Errorf("verdict of queue %d: %w", a.number, errno)
	}
}
