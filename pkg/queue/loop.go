package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// loop moves datagrams from a socket through an answerer, and verdicts back. It
// belongs to one goroutine.
type loop struct {
	*answerer
	w    *worker
	sock Socket
	ms   []Message
}

func newLoop(w *worker, sock Socket, handler Handler, logger klog.Logger) *loop {
	size := align4(int(w.cfg.CopyRange)) + metaLen
	room := make([]byte, batchLen*size)
	ms := make([]Message, batchLen)
	for i := range ms {
		ms[i].Buf = room[i*size : (i+1)*size : (i+1)*size]
	}
	a := newAnswerer(w.cfg, w.number, handler, w.metrics, logger)
	return &loop{answerer: a, w: w, sock: sock, ms: ms}
}

// run answers packets until ctx ends; whoever ends it interrupts the socket. An error
// means that the socket does not work.
func (l *loop) run(ctx context.Context) error {
	deadline := time.Now() // the first turn does not wait: it shows whether the socket works
	for ctx.Err() == nil {
		if _, err := l.turn(deadline); err != nil {
			return err
		}
		deadline = l.retryAt // zero while no packet is held: then only a datagram wakes us
	}
	return nil
}

// drain stops the flow of packets and answers those that wait already. The
// socket is interrupted.
func (l *loop) drain() error {
	if err := l.sock.Send(appendCopyMode(nil, l.number, 0, copyNone)); err != nil {
		return fmt.Errorf("configure queue %d: %w", l.number, err)
	}
	l.closePending()
	for end := time.Now().Add(drainTime); time.Now().Before(end); {
		if more, err := l.turn(time.Time{}); err != nil || !more {
			return err
		}
	}
	return nil // what waits longer is dropped when the queue is unbound
}

// turn receives a batch and answers it. It reports whether there was anything
// to receive.
func (l *loop) turn(deadline time.Time) (more bool, err error) {
	n, lost, err := l.receive(deadline)
	if err != nil {
		return false, err
	}
	if lost {
		l.metrics.enobufs.Inc() // the kernel counts the packets as user dropped
	}
	for _, m := range l.ms[:n] {
		l.datagram(m.Buf[:m.N])
	}
	if l.failure != nil {
		l.w.failed(l.logger, opConfigure, l.failure)
		return false, l.failure
	}
	if l.configured {
		l.w.worked(opConfigure)
	}
	if !l.retryAt.IsZero() {
		l.retryPending(time.Now())
	}
	return lost || n > 0, l.flush()
}

// receive returns how many datagrams were received, and whether some were lost
// before them because the receive buffer was full.
func (l *loop) receive(deadline time.Time) (n int, lost bool, err error) {
	wait := firstPause
	for attempt := 1; ; attempt++ {
		n, err = l.sock.Receive(l.ms, deadline)
		lost = errors.Is(err, unix.ENOBUFS)
		if err == nil || lost {
			l.w.worked(opReceive)
			return n, lost, nil
		}
		l.w.failed(l.logger, opReceive, err)
		if attempt == attempts {
			return 0, false, fmt.Errorf("receive from queue %d: %w", l.number, err)
		}
		time.Sleep(wait)
		wait *= 2
		deadline = time.Now() // does it work again?
	}
}

// flush sends all verdicts in one write. When that fails they are sent again, one by
// one: a message that is too long, or for which the kernel has no memory, is so no
// more. What the kernel acted on nevertheless it calls gone the second time.
func (l *loop) flush() error {
	if len(l.out) == 0 {
		return nil
	}
	err := l.sock.Send(l.out)
	wait := firstPause
	for attempt := 2; err != nil && attempt <= attempts; attempt++ {
		l.w.failed(l.logger, opSend, err)
		time.Sleep(wait)
		wait *= 2
		err = l.sendEach()
	}
	if err != nil {
		l.w.failed(l.logger, opSend, err)
		return fmt.Errorf("send verdicts of queue %d: %w", l.number, err)
	}
	l.w.worked(opSend)
	l.sent(l.unsent)
	l.out, l.unsent = l.out[:0], [2]uint64{}
	return nil
}

// sendEach sends the verdicts one by one, up to one that cannot be sent.
func (l *loop) sendEach() error {
	var done [2]uint64
	var err error
	rest := l.out
	for len(rest) > 0 && err == nil {
		m, behind, _ := nextMessage(rest)
		if err = l.sock.Send(rest[:len(rest)-len(behind)]); err == nil {
			done[verdictOf(m)]++
			rest = behind
		}
	}
	l.sent(done)
	for v := range done {
		l.unsent[v] -= done[v]
	}
	l.out = append(l.out[:0], rest...)
	return err
}

// sent counts packets that were answered, by verdict.
func (l *loop) sent(n [2]uint64) {
	l.w.answered.Add(n[verdictDrop] + n[verdictAccept])
	l.metrics.dropped.Add(float64(n[verdictDrop]))
	l.metrics.accepted.Add(float64(n[verdictAccept]))
}
