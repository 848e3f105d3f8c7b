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

func newLoop(w *worker, sock Socket, judge Judge, logger klog.Logger) *loop {
	size := align4(int(w.cfg.CopyRange)) + metaLen
	room := make([]byte, batchLen*size)
	ms := make([]Message, batchLen)
	for i := range ms {
		ms[i].Buf = room[i*size : (i+1)*size : (i+1)*size]
	}
	a := newAnswerer(w.cfg, w.number, judge, w.metrics, logger)
	return &loop{answerer: a, w: w, sock: sock, ms: ms}
}

// run answers packets until ctx ends; whoever ends it interrupts the socket.
func (l *loop) run(ctx context.Context) error {
	for ctx.Err() == nil {
		// askAt is zero while no packet is held: then only a datagram wakes us.
		if _, err := l.turn(l.askAt); err != nil {
			return err
		}
	}
	return nil
}

// drain stops the flow of packets and answers those that wait already. The
// socket is interrupted.
func (l *loop) drain() error {
	if err := l.sock.Send(appendCopyMode(nil, l.number, 0, copyNone)); err != nil {
		return fmt.Errorf("configure queue %d: %w", l.number, err)
	}
	l.closeHeld()
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
	n, err := l.sock.Receive(l.ms, deadline)
	lost := errors.Is(err, unix.ENOBUFS)
	if err != nil && !lost {
		return false, fmt.Errorf("receive from queue %d: %w", l.number, err)
	}
	if lost {
		l.metrics.enobufs.Inc() // the kernel counts the packets as user dropped
	}
	for _, m := range l.ms[:n] {
		l.datagram(m.Buf[:m.N])
	}
	if l.failure != nil {
		return false, l.failure
	}
	if !l.askAt.IsZero() {
		l.askHeld(time.Now())
	}
	return lost || n > 0, l.flush()
}

// flush sends all verdicts in one write.
func (l *loop) flush() error {
	if len(l.out) == 0 {
		return nil
	}
	if err := l.sock.Send(l.out); err != nil {
		return fmt.Errorf("send verdicts of queue %d: %w", l.number, err)
	}
	l.w.answered.Add(l.unsent[verdictDrop] + l.unsent[verdictAccept])
	l.metrics.dropped.Add(float64(l.unsent[verdictDrop]))
	l.metrics.accepted.Add(float64(l.unsent[verdictAccept]))
	l.out, l.unsent = l.out[:0], [2]uint64{}
	return nil
}
