package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// worker serves one queue number.
type worker struct {
	number  uint16
	cfg     Config
	metrics *metrics
	faults

	bound    atomic.Bool   // packets of this number reach us
	serving  atomic.Bool   // they are being answered
	answered atomic.Uint64 // packets answered since the start
}

func newWorker(cfg Config, number uint16, m *metrics) *worker {
	w := &worker{number: number, cfg: cfg, metrics: m, faults: faults{number: number, metrics: m}}
	w.setBound(false)
	return w
}

// run binds the queue and serves it until ctx ends. A socket that does not work is
// closed, and the queue bound again. An error is one of the first binding.
func (w *worker) run(ctx context.Context, handler Handler, ready <-chan struct{}) error {
	logger := klog.FromContext(ctx)
	if w.cfg.Background {
		// The thread ends with the goroutine, and its low priority with it.
		runtime.LockOSThread()
		if err := w.cfg.Kernel.LowerPriority(); err != nil {
			logger.Error(err, "Queue is served with the priority of others", "queue", w.number)
		}
	}
	var rebound throttle
	for first := true; ; first = false {
		begin := time.Now()
		sock, err := w.bind(ctx, first)
		if err != nil {
			return err
		}
		if sock == nil {
			return nil
		}
		err = w.serveBound(ctx, sock, handler, ready)
		lost := w.unbind(logger, sock, err != nil)
		if err != nil && rebound.allow(time.Now()) {
			logger.Error(err, "Queue unbound, packets that waited are lost", "queue", w.number, "lost", lost)
		}
		if ctx.Err() != nil {
			return nil
		}
		w.metrics.rebinds.Inc()
		pause(ctx, bindEvery-time.Since(begin)) // none for a socket that worked until now
	}
}

// bind tries until the number is ours, and returns no Socket when ctx ends before.
// An error is one of a first binding that cannot succeed. While another process has
// the kernel load its module the answer is EINVAL, as it is of a kernel without one:
// that is believed after a while.
func (w *worker) bind(ctx context.Context, first bool) (Socket, error) {
	logger := klog.FromContext(ctx)
	logged := false
	for attempt := 1; ctx.Err() == nil; attempt++ {
		sock, err := w.cfg.Kernel.Bind(ctx, w.number, w.cfg)
		switch {
		case err == nil:
			w.worked(opBind)
			if first {
				logger.Info("Queue bound", "queue", w.number)
			}
			return sock, nil
		case ctx.Err() != nil:
			return nil, nil
		case errors.Is(err, ErrTaken):
			w.worked(opBind) // nothing is wrong with the kernel
			if !logged {
				logged = true
				logger.Error(err, "Queue not bound, will retry", "queue", w.number)
			}
		case first && (hopeless(err) || errors.Is(err, unix.EINVAL) && attempt >= bindAttempts):
			return nil, err
		default:
			w.failed(logger, opBind, err)
		}
		pause(ctx, bindEvery)
	}
	return nil, nil
}

// unbind closes the socket, which makes the kernel drop what waits in the queue. It
// returns, and counts, how many packets that were if the socket failed.
func (w *worker) unbind(logger klog.Logger, sock Socket, failed bool) (lost uint32) {
	w.setBound(false)
	if failed {
		lost = w.waiting()
		w.metrics.lost.Add(float64(lost))
	}
	if err := sock.Close(); err != nil {
		w.failed(logger, opClose, err)
	}
	return lost
}

// waiting returns how many packets of the queue the kernel keeps, and 0 if it does
// not tell.
func (w *worker) waiting() uint32 {
	stats, _ := w.cfg.Kernel.Stats() // Live and the collector tell of an error
	for _, s := range stats {
		if s.Number == w.number {
			return s.Waiting
		}
	}
	return 0
}

// serveBound lets packets come, and serves them once ready is closed. It returns nil
// when ctx ends and all that waited is answered.
func (w *worker) serveBound(ctx context.Context, sock Socket, handler Handler, ready <-chan struct{}) error {
	logger := klog.FromContext(ctx)
	if err := sock.Send(appendCopyMode(nil, w.number, w.cfg.CopyRange, copyPacket)); err != nil {
		w.failed(logger, opConfigure, err)
		return fmt.Errorf("configure queue %d: %w", w.number, err)
	}
	w.setBound(true)
	select {
	case <-ctx.Done():
		return nil
	case <-ready:
	}

	w.serving.Store(true)
	defer w.serving.Store(false)
	l := newLoop(w, sock, handler, logger)
	defer l.forgetPending()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		<-ctx.Done()
		sock.Interrupt()
	})
	if err := l.run(ctx); err != nil {
		return err
	}
	return l.drain()
}

func (w *worker) setBound(yes bool) {
	w.bound.Store(yes)
	w.metrics.setBound(w.number, yes)
}

// pause waits, but not beyond the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
