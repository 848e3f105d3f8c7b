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

// answerer turns the datagrams of one queue into verdict messages: one for each
// packet. It touches no socket. It belongs to one goroutine.
type answerer struct {
	number          uint16
	handler         Handler
	acceptMark      uint32
	rememberMark    uint32
	failOpenOnPanic bool
	source          func(payload []byte) netip.Addr
	metrics         *metrics
	logger          klog.Logger

	out     []byte    // verdicts not yet sent
	unsent  [2]uint64 // how many of them drop, how many accept
	pending []pendingPacket
	long    int       // how many of them are pending for long
	retryAt time.Time // when to retry pending packets; zero if there are none
	closing bool      // no more packets can become pending
	failure error     // the kernel refused our configuration or a verdict

	configured bool // the kernel acknowledged it

	panicLog throttle
}

func newAnswerer(cfg Config, number uint16, handler Handler, m *metrics, logger klog.Logger) *answerer {
	return &answerer{
		number:          number,
		handler:         handler,
		acceptMark:      cfg.AcceptMark,
		rememberMark:    cfg.RememberMark,
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

// marked reports whether a packet has the mark of those that are accepted.
func (a *answerer) marked(mark uint32) bool { return mark&a.acceptMark != 0 }

// packet answers one packet, or keeps it as pending.
func (a *answerer) packet(m message) {
	p, ok := decodePacket(m.body)
	if !ok || m.cut {
		a.metrics.malformed.Inc()
		if p.hasID {
			a.answer(p.id, p.mark, Drop)
		}
		return
	}
	q := Packet{Payload: p.payload, ToHost: p.toHost, Link: p.link, Marked: a.marked(p.mark), Last: a.closing}
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
	a.answer(p.id, p.mark, verdict)
}

// sourceOf returns the source of p, as Config.Source has it.
func (a *answerer) sourceOf(p packetMessage) netip.Addr {
	if a.source == nil {
		return netip.Addr{}
	}
	return a.source(p.payload)
}

// decide calls the Handler and recovers its panics.
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

// answer appends the verdict on one packet to what is to be sent.
func (a *answerer) answer(id, mark uint32, v Verdict) {
	if v != Accept && v != Remember {
		a.out = appendVerdict(a.out, a.number, id, verdictDrop, nil)
		a.unsent[verdictDrop]++
		return
	}
	a.unsent[verdictAccept]++
	if a.acceptMark == 0 {
		a.out = appendVerdict(a.out, a.number, id, verdictAccept, nil)
		return
	}
	mark = mark&^a.rememberMark | a.acceptMark
	if v == Remember {
		mark |= a.rememberMark
	}
	a.out = appendVerdict(a.out, a.number, id, verdictAccept, &mark)
}

// kernelError handles the answer of the kernel to one of our messages.
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
		// Gone while it waited: its device went down, or the table that
		// queued it was deleted.
		a.metrics.gone.Inc()
	default:
		// The packet would wait for ever: only unbinding the queue frees it.
		a.metrics.refused.Inc()
		a.failure = fmt.Errorf("verdict of queue %d: %w", a.number, errno)
	}
}
