package queue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

// worker serves one queue of each Config in the order of the Configs: it polls all sockets, receives
// a batch from the first readable one, and polls again. It is one goroutine: a thread for each queue
// would not decide more packets, and would waste CPU time on switching.
type worker struct {
	kernel  Kernel
	queues  []*queue  // by priority
	sockets []Socket  // the sockets of queues; nil while a queue is not bound
	batch   []Message // buffers for receiving

	serving  atomic.Bool // packets are being answered
	stepping sync.Mutex  // held from deciding a batch until its verdicts are sent
}

func newWorker(kernel Kernel, queues []*queue) *worker {
	copyRange := uint32(0)
	for _, q := range queues {
		copyRange = max(copyRange, q.cfg.CopyRange)
	}
	return &worker{kernel: kernel, queues: queues, sockets: make([]Socket, len(queues)), batch: newBatch(int(copyRange))}
}

// newBatch returns buffers for a batch of packets with copyRange bytes of payload each.
func newBatch(copyRange int) []Message {
	size := align4(copyRange) + metaLen
	room := make([]byte, batchLen*size)
	batch := make([]Message, batchLen)
	for i := range batch {
		batch[i].Buf = room[i*size : (i+1)*size : (i+1)*size]
	}
	return batch
}

// run binds the queues and serves them until ctx ends. It closes a socket that does not work, and
// binds its queue again while it continues to serve the other ones. It returns an error only of the
// first binding.
func (w *worker) run(ctx context.Context, handler Handler, ready <-chan struct{}) error {
	poller, err := w.kernel.NewPoller()
	if err != nil {
		return fmt.Errorf("open poller of queue %d: %w", w.queues[0].number, err)
	}
	defer poller.Close()
	for _, q := range w.queues {
		q.handler, q.logger = handler, klog.FromContext(ctx)
		defer q.unbind()
	}
	if err := w.awaitReady(ctx, ready); err != nil || ctx.Err() != nil {
		return err
	}

	w.serving.Store(true)
	defer w.serving.Store(false)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		<-ctx.Done()
		poller.Interrupt()
	})
	for ctx.Err() == nil {
		if err := w.bind(ctx); err != nil {
			return err
		}
		w.step(poller)
	}
	w.drain()
	return nil
}

// awaitReady binds the queues, and returns when ready is closed or ctx ends.
func (w *worker) awaitReady(ctx context.Context, ready <-chan struct{}) error {
	for {
		if err := w.bind(ctx); err != nil {
			return err
		}
		var due <-chan time.Time
		if at := w.dueAt(); !at.IsZero() {
			due = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ready:
			return nil
		case <-due:
		}
	}
}

// bind binds the queues that are not bound if an attempt is due.
func (w *worker) bind(ctx context.Context) error {
	for i, q := range w.queues {
		if q.sock == nil && !time.Now().Before(q.bindAt) {
			if err := q.bind(ctx); err != nil {
				return err
			}
		}
		w.sockets[i] = q.sock
	}
	return nil
}

// dueAt returns when the first queue has work other than receiving, zero if none has.
func (w *worker) dueAt() (next time.Time) {
	for _, q := range w.queues {
		if at := q.dueAt(); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// step waits for packets, and answers a batch of the first queue that has any. While waiting fails,
// it tries all queues every firstPause.
func (w *worker) step(poller Poller) {
	first := w.queues[0]
	deadline := w.dueAt()
	if first.fails(opWait) {
		deadline = time.Now() // only test whether waiting works again
	}
	readable, err := poller.Wait(w.sockets, deadline)
	if err != nil {
		first.failed(first.logger, opWait, err)
		time.Sleep(firstPause)
	} else {
		first.succeeded(opWait)
	}
	w.stepping.Lock()
	defer w.stepping.Unlock()
	for i, q := range w.queues {
		if q.sock != nil {
			q.step(w.batch, i == readable || err != nil)
		}
	}
}

// drain stops the flow of packets and answers the waiting ones for up to drainTime. The rest is
// dropped when the queues are unbound.
func (w *worker) drain() {
	w.stepping.Lock()
	defer w.stepping.Unlock()
	for _, q := range w.queues {
		if q.sock != nil {
			q.stop()
		}
	}
	end := time.Now().Add(drainTime)
	for _, q := range w.queues {
		for q.sock != nil && q.step(w.batch, true) && time.Now().Before(end) {
		}
	}
}
