package queue

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// queue is one queue number: its socket while it is bound, and its packets. Its methods
// belong to the goroutine of its worker; bound and answered may be read by any.
type queue struct {
	number  uint16
	cfg     Config
	metrics *metrics
	handler Handler
	logger  klog.Logger
	faults

	sock      Socket // nil while the queue is not bound
	*answerer        // of this socket

	bindAt   time.Time // when to try to bind next
	attempts int       // failed since the queue was unbound
	rebind   bool      // the queue has been bound before
	taken    bool      // it was logged that another process has bound the number
	lostLog  throttle

	bound    atomic.Bool   // packets of this number reach us
	answered atomic.Uint64 // packets answered since the start
}

func newQueue(cfg Config, number uint16, m *metrics) *queue {
	q := &queue{number: number, cfg: cfg, metrics: m, faults: faults{number: number, metrics: m}}
	q.setBound(false)
	return q
}

// bind tries to bind the queue and lets packets come. An error is one of the first
// binding that no later attempt avoids. While another process has the kernel load its
// module, the kernel answers EINVAL, as it does without one: only after some attempts
// that is taken for an answer.
func (q *queue) bind(ctx context.Context) error {
	q.bindAt = time.Now().Add(bindEvery)
	q.attempts++
	sock, err := q.cfg.Kernel.Bind(ctx, q.number, q.cfg)
	switch {
	case err == nil:
		q.worked(opBind)
		q.begin(sock)
	case ctx.Err() != nil:
	case errors.Is(err, ErrTaken):
		q.worked(opBind) // nothing is wrong with the kernel
		if !q.taken {
			q.taken = true
			q.logger.Error(err, "Queue not bound, will retry", "queue", q.number)
		}
	case !q.rebind && (hopeless(err) || errors.Is(err, unix.EINVAL) && q.attempts >= bindAttempts):
		return err
	default:
		q.failed(q.logger, opBind, err)
	}
	return nil
}

// begin lets packets come by the socket that the queue is bound by from now on.
func (q *queue) begin(sock Socket) {
	if q.rebind {
		q.metrics.rebinds.Inc()
	} else {
		q.logger.Info("Queue bound", "queue", q.number)
	}
	q.rebind, q.taken, q.attempts = true, false, 0
	q.sock = sock
	q.answerer = newAnswerer(q.cfg, q.number, q.handler, q.metrics, q.logger)
	if err := sock.Send(appendCopyMode(nil, q.number, q.cfg.CopyRange, copyPacket)); err != nil {
		q.failed(q.logger, opConfigure, err)
		q.fail(fmt.Errorf("configure queue %d: %w", q.number, err))
		return
	}
	q.setBound(true)
}

// fail closes a socket that does not work. The queue is bound again when that is due.
func (q *queue) fail(err error) {
	lost := q.waiting()
	q.metrics.lost.Add(float64(lost))
	q.unbind()
	if q.lostLog.allow(time.Now()) {
		q.logger.Error(err, "Queue unbound, packets that waited are lost", "queue", q.number, "lost", lost)
	}
}

// unbind closes the socket, if there is one. The kernel drops what waits in the queue.
func (q *queue) unbind() {
	if q.sock == nil {
		return
	}
	q.setBound(false)
	q.forgetPending()
	if err := q.sock.Close(); err != nil {
		q.failed(q.logger, opClose, err)
	}
	q.sock = nil
}

// waiting returns how many packets of the queue wait in the kernel, and 0 if that
// cannot be read.
func (q *queue) waiting() uint32 {
	stats, _ := q.cfg.Kernel.Stats() // Live and the collector report an error
	for _, s := range stats {
		if s.Number == q.number {
			return s.Waiting
		}
	}
	return 0
}

// dueAt returns when the queue has work other than to receive, and zero if it has none.
func (q *queue) dueAt() time.Time {
	if q.sock == nil {
		return q.bindAt
	}
	return q.retryAt
}

func (q *queue) setBound(yes bool) {
	q.bound.Store(yes)
	q.metrics.setBound(q.number, yes)
}
