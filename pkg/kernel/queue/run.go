package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

// Queues serves ranges of queue numbers. New creates it. Run may be called only once.
type Queues struct {
	kernel  Kernel
	queues  []*queue
	workers []*worker
	failure atomic.Pointer[error] // why a worker ended

	mu         sync.Mutex
	watch      map[uint16]observation // by queue number
	statsSince time.Time              // since when the calls of Stats have failed; zero if the last one succeeded
}

// observation is the state of a queue when its packets were seen waiting in the kernel.
type observation struct {
	since    time.Time
	answered uint64 // packets answered until since
}

// New returns the queues of cfg and of lower, and registers their metrics. Run binds them.
//
// Each Config in lower has as many queues as cfg and the same Kernel. One goroutine serves the i-th
// queue of every Config by strict priority: it decides a batch of packets of a lower Config only
// while the queues of the Configs before it are empty.
func New(cfg Config, lower ...Config) (*Queues, error) {
	cfgs := append([]Config{cfg}, lower...)
	for i, c := range cfgs {
		if err := c.Validate(); err != nil {
			return nil, fmt.Errorf("queue config: %w", err)
		}
		if c.Count != cfg.Count {
			return nil, fmt.Errorf("queue config: Count is %d, and %d in the first Config", c.Count, cfg.Count)
		}
		cfgs[i] = c.withDefaults()
	}
	qs := &Queues{kernel: cfgs[0].Kernel, watch: map[uint16]observation{}}
	byWorker := make([][]*queue, cfg.Count)
	for _, c := range cfgs {
		m := newMetrics(c)
		for i, number := range c.numbers().All() {
			q := newQueue(c, number, m)
			byWorker[i] = append(byWorker[i], q)
			qs.queues = append(qs.queues, q)
		}
	}
	for _, queues := range byWorker {
		qs.workers = append(qs.workers, newWorker(qs.kernel, queues))
	}
	return qs, nil
}

// Run binds all queues and answers their packets until ctx ends. All its goroutines have ended when
// it returns.
//
// Until ready is closed, packets wait in the kernel and handler is not called. When ctx ends, Run
// stops the flow of packets, answers the waiting ones, and unbinds the queues.
//
// If another process has bound a number, Run keeps trying, so that a new process takes over as soon
// as the old one leaves. Numbers are bound independently: if one is taken, only the flows that the
// kernel sends to it are lost.
//
// Failed calls to the kernel are retried, with a new socket if necessary; Live reports it if that
// does not help. Run ends with an error only if the first binding fails permanently: capabilities
// are missing, or the kernel has no queues.
func (qs *Queues) Run(ctx context.Context, handler Handler, ready <-chan struct{}) error {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "queue"))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	errs := make([]error, len(qs.workers))
	var wg sync.WaitGroup
	for i, w := range qs.workers {
		wg.Go(func() {
			errs[i] = w.run(ctx, handler, ready)
			if errs[i] != nil {
				qs.failure.CompareAndSwap(nil, &errs[i])
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Flushed returns when the kernel has handled all verdicts that handler returned before the call.
// Rules after the queue have then seen those packets.
func (qs *Queues) Flushed() {
	for _, w := range qs.workers {
		w.stepping.Lock()
		//lint:ignore SA2001 the running step has ended
		w.stepping.Unlock()
	}
}

// Bound reports whether all queues are bound, so that no packet misses its listener.
func (qs *Queues) Bound() bool {
	for _, q := range qs.queues {
		if !q.bound.Load() {
			return false
		}
	}
	return true
}

// Live returns an error if packets are not answered although they should be: a worker has ended with
// an error, calls to the kernel have failed for ten seconds, or packets of a queue have waited in the
// kernel for ten seconds while no packet of this or a higher priority was answered. Live compares
// with its earlier calls, so it must be called repeatedly. A queue that waits for its number, for
// ready or for queues of a higher priority is alive.
func (qs *Queues) Live(now time.Time) error {
	if err := qs.failure.Load(); err != nil {
		return *err
	}
	stats, err := qs.kernel.Stats()
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if err != nil {
		return errors.Join(qs.persistent(), qs.unreadable(now, err))
	}
	qs.statsSince = time.Time{}
	return errors.Join(qs.persistent(), qs.stuck(now, stats))
}

// persistent returns an error for each queue whose calls keep failing.
func (qs *Queues) persistent() error {
	var errs []error
	for _, q := range qs.queues {
		errs = append(errs, q.persistent())
	}
	return errors.Join(errs...)
}

// unreadable records that reading the statistics failed. It returns the error if that has lasted for
// stuckAfter.
func (qs *Queues) unreadable(now time.Time, err error) error {
	if qs.statsSince.IsZero() {
		qs.statsSince = now
	}
	if now.Sub(qs.statsSince) < stuckAfter {
		return nil
	}
	return err
}

// stuck returns an error for each queue whose packets wait without being answered.
func (qs *Queues) stuck(now time.Time, stats []Stat) error {
	waiting := map[uint16]uint32{}
	for _, s := range stats {
		waiting[s.Number] = s.Waiting
	}
	var errs []error
	for _, w := range qs.workers {
		answered := uint64(0) // packets of this and higher priorities
		for _, q := range w.queues {
			answered += q.answered.Load()
			n := waiting[q.number]
			if !w.serving.Load() || !q.bound.Load() || n == 0 {
				delete(qs.watch, q.number)
				continue
			}
			seen, ok := qs.watch[q.number]
			if !ok || seen.answered != answered {
				qs.watch[q.number] = observation{now, answered}
			} else if d := now.Sub(seen.since); d >= stuckAfter {
				errs = append(errs, fmt.Errorf("queue %d: %d packets wait and none was answered for %v", q.number, n, d))
			}
		}
	}
	return errors.Join(errs...)
}
