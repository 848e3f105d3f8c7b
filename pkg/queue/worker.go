package queue

import (
	"context"
	"errors"
	"fmt"
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

	bound    atomic.Bool   // packets of this number reach us
	serving  atomic.Bool   // they are being answered
	answered atomic.Uint64 // packets answered since the start
}

func newWorker(cfg Config, number uint16, m *metrics) *worker {
	w := &worker{number: number, cfg: cfg, metrics: m}
	w.setBound(false)
	return w
}

// run binds the queue and serves it until ctx ends.
func (w *worker) run(ctx context.Context, judge Judge, ready <-chan struct{}) error {
	sock, err := w.bind(ctx)
	if ctx.Err() != nil && err != nil {
		return nil
	}
	if err != nil {
		return err
	}
	err = w.serveBound(ctx, sock, judge, ready)
	w.setBound(false)
	if cerr := sock.Close(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("close queue %d: %w", w.number, cerr))
	}
	return err
}

// bind tries until the number is ours, ctx ends, or something else than a taken
// number is wrong. While another process has the kernel load its module the answer
// is EINVAL, as it is of a kernel without one: that is believed after a while.
func (w *worker) bind(ctx context.Context) (Socket, error) {
	logger := klog.FromContext(ctx)
	logged := ""
	for attempt := 1; ; attempt++ {
		sock, err := w.cfg.Kernel.Bind(ctx, w.number, w.cfg)
		if err == nil {
			return sock, nil
		}
		loading := errors.Is(err, unix.EINVAL) && attempt < bindAttempts
		if !errors.Is(err, ErrTaken) && !loading {
			return nil, err
		}
		if err.Error() != logged {
			logged = err.Error()
			logger.Error(err, "Queue not bound, will retry", "queue", w.number)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(bindEvery):
		}
	}
}

// serveBound lets packets come, and serves them once ready is closed.
func (w *worker) serveBound(ctx context.Context, sock Socket, judge Judge, ready <-chan struct{}) error {
	logger := klog.FromContext(ctx)
	if err := sock.Send(appendCopyMode(nil, w.number, w.cfg.CopyRange, copyPacket)); err != nil {
		return fmt.Errorf("configure queue %d: %w", w.number, err)
	}
	w.setBound(true)
	logger.Info("Queue bound", "queue", w.number)
	select {
	case <-ctx.Done():
		return nil
	case <-ready:
	}

	w.serving.Store(true)
	defer w.serving.Store(false)
	l := newLoop(w, sock, judge, logger)
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
