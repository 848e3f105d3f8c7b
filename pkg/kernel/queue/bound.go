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

// queue is one queue number with its packets, and with its socket while it is bound. It belongs to
// the goroutine of its worker; any goroutine may read bound and answered.
type queue struct {
	number  uint16
	cfg     Config
	metrics *metrics
	handler Handler
	logger  klog.Logger
	faults

	sock      Socket // nil while the queue is not bound
	*answerer        // for the packets of sock

	bindAt      time.Time // when to try to bind next
	attempts    int       // failed attempts since the queue was unbound
	rebind      bool      // the queue has been bound before
	loggedTaken bool      // another process has bound the number, which has been logged
	lostLog     throttle

	bound    atomic.Bool   // packets with this number reach us
	answered atomic.Uint64 // packets answered since the start
}

func newQueue(cfg Config, number uint16, m *metrics) *queue {
	q := &queue{number: number, cfg: cfg, metrics: m, faults: faults{number: number, metrics: m}}
	q.setBound(false)
	return q
}

// bind tries to bind the queue and to start its packets. It returns an error only before the
// queue was ever bound, if retrying cannot help. While another process makes the kernel load its
// module, the kernel answers EINVAL, as it does without a module: so EINVAL counts as permanent
// only after some attempts.
func (q *queue) bind(ctx context.Context) error {
	q.bindAt = time.Now().Add(bindEvery)
	q.attempts++
	sock, err := q.cfg.Kernel.Bind(ctx, q.number, q.cfg)
	switch {
	case err == nil:
		q.succeeded(opBind)
		q.begin(sock)
	case ctx.Err() != nil:
	case errors.Is(err, ErrTaken):
		q.succeeded(opBind) // nothing is wrong with the kernel
		if !q.loggedTaken {
			q.loggedTaken = true
			q.logger.Error(err, "Queue not bound, will retry", "queue", q.number)
		}
	case !q.rebind && (permanent(err) || errors.Is(err, unix.EINVAL) && q.attempts >= bindAttempts):
		return err
	default:
		q.failed(q.logger, opBind, err)
	}
	return nil
}

// begin starts to receive packets from sock, which is bound to the queue.
func (q *queue) begin(sock Socket) {
	if q.rebind {
		q.metrics.rebinds.Inc()
	} else {
		q.logger.Info("Queue bound", "queue", q.number)
	}
	q.rebind, q.loggedTaken, q.attempts = true, false, 0
	q.sock = sock
	q.answerer = newAnswerer(q.cfg, q.number, q.handler, q.metrics, q.logger)
	if err := sock.Send(appendCopyMode(nil, q.number, q.cfg.CopyRange, copyPacket)); err != nil {
		q.failed(q.logger, opConfigure, err)
		q.fail(fmt.Errorf("configure queue %d: %w", q.number, err))
		return
	}
	q.setBound(true)
}

// fail closes a socket that does not work. The queue is bound again at bindAt.
func (q *queue) fail(err error) {
	lost := q.waiting()
	q.metrics.lost.Add(float64(lost))
	q.unbind()
	if q.lostLog.allow(time.Now()) {
		q.logger.Error(err, "Queue unbound, packets that waited are lost", "queue", q.number, "lost", lost)
	}
}

// unbind closes the socket, if there is one. The kernel drops the packets in the queue.
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

// waiting returns how many packets wait in the kernel's queue, 0 if that cannot be read.
func (q *queue) waiting() uint32 {
	stats, _ := q.cfg.Kernel.Stats() // Live and the collector report errors
	for _, s := range stats {
		if s.Number == q.number {
			return s.Waiting
		}
	}
	return 0
}

// dueAt returns when the queue has work other than receiving, zero if it has none.
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
