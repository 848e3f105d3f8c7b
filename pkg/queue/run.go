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

// Queues serves a range of queue numbers. It is made by New, and Run may be
// called once.
type Queues struct {
	cfg     Config
	metrics *metrics
	workers []*worker
	failure atomic.Pointer[error] // why a loop ended

	mu         sync.Mutex
	watch      map[uint16]sighting // by queue number
	statsSince time.Time           // when the first of the latest calls of Stats failed
}

// sighting is a moment at which packets waited in the kernel.
type sighting struct {
	since    time.Time
	answered uint64 // packets answered until then
}

// New returns the queues of cfg and registers their metrics. It binds nothing;
// Run does.
func New(cfg Config) (*Queues, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("queue config: %w", err)
	}
	cfg = cfg.withDefaults()
	q := &Queues{cfg: cfg, metrics: newMetrics(cfg), watch: map[uint16]sighting{}}
	for i := range cfg.Count {
		q.workers = append(q.workers, newWorker(cfg, cfg.First+i, q.metrics))
	}
	return q, nil
}

// Run binds all queues and answers their packets until ctx ends: one goroutine
// per queue, and all have ended when Run returns.
//
// Until ready is closed packets wait in the kernel and judge is not called. When
// ctx ends, Run tells the kernel to send no more, answers what still waits, and
// unbinds.
//
// A number that another process holds is tried again and again, so that a new
// process takes over as soon as the old one leaves. Each number is bound and
// answered on its own: one that is taken costs the flows the kernel sends to
// it, and no other.
//
// A call to the kernel that fails is made again, with a new socket if need be; Live
// tells when that does not help. Only an error of the first binding that no attempt
// can mend ends Run: rights are missing, or the kernel has no queues.
func (q *Queues) Run(ctx context.Context, handler Handler, ready <-chan struct{}) error {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "queue"))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	errs := make([]error, len(q.workers))
	var wg sync.WaitGroup
	for i, w := range q.workers {
		wg.Go(func() {
			if errs[i] = w.run(ctx, handler, ready); errs[i] != nil {
				q.failure.CompareAndSwap(nil, &errs[i])
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Bound reports whether all queues are bound, so that no packet misses its
// listener.
func (q *Queues) Bound() bool {
	for _, w := range q.workers {
		if !w.bound.Load() {
			return false
		}
	}
	return true
}

// Live returns an error when packets are not answered though they should be: a
// loop has ended with an error, calls to the kernel have failed for ten seconds, or
// packets of a queue wait in the kernel and none of it was answered for that long. It
// compares with what it saw in earlier calls, so it has to be asked more than once. A
// queue that waits for its number or for ready is alive.
func (q *Queues) Live(now time.Time) error {
	if err := q.failure.Load(); err != nil {
		return *err
	}
	stats, err := q.cfg.Kernel.Stats()
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil {
		return errors.Join(q.persistent(), q.unreadable(now, err))
	}
	q.statsSince = time.Time{}
	return errors.Join(q.persistent(), q.stuck(now, stats))
}

// persistent returns an error for each queue whose calls keep failing.
func (q *Queues) persistent() error {
	var errs []error
	for _, w := range q.workers {
		errs = append(errs, w.persistent())
	}
	return errors.Join(errs...)
}

// unreadable takes note that the statistics could not be read, and returns the error
// once that has been so for stuckAfter.
func (q *Queues) unreadable(now time.Time, err error) error {
	if q.statsSince.IsZero() {
		q.statsSince = now
	}
	if now.Sub(q.statsSince) < stuckAfter {
		return nil
	}
	return err
}

// stuck returns an error for each queue whose packets wait and are not answered.
func (q *Queues) stuck(now time.Time, stats []Stat) error {
	waiting := map[uint16]uint32{}
	for _, s := range stats {
		waiting[s.Number] = s.Waiting
	}
	var errs []error
	for _, w := range q.workers {
		n := waiting[w.number]
		if !w.serving.Load() || n == 0 {
			delete(q.watch, w.number)
			continue
		}
		seen, ok := q.watch[w.number]
		if answered := w.answered.Load(); !ok || seen.answered != answered {
			q.watch[w.number] = sighting{now, answered}
		} else if d := now.Sub(seen.since); d >= stuckAfter {
			errs = append(errs, fmt.Errorf("queue %d: %d packets wait and none was answered for %v", w.number, n, d))
		}
	}
	return errors.Join(errs...)
}
