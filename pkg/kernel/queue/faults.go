package queue

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// operation is a kind of call to the kernel.
type operation int

const (
	opBind      operation = iota // open a socket and bind the queue number
	opConfigure                  // set the copy mode
	opWait                       // wait for packets; recorded for the queue with the highest priority
	opReceive                    // receive packets
	opSend                       // send verdicts
	opClose                      // close the socket
	operations
)

func (o operation) String() string {
	return [operations]string{"bind", "configure", "wait", "receive", "send", "close"}[o]
}

// A failed call is retried a few times after pauses of firstPause, twice that, and so on. Together
// the pauses take 15 ms, during which the other queues of the worker wait, too. Then the socket is
// closed and the queue bound again, at most every bindEvery.
const (
	attempts   = 5
	firstPause = time.Millisecond
)

// failing is a series of failed calls of one kind without a success in between.
type failing struct {
	first, latest time.Time
	err           error // the latest
}

// faults counts, logs and remembers the failed calls of one queue. failed and succeeded belong to the
// goroutine that serves the queue; persistent may be called from any goroutine.
type faults struct {
	number  uint16
	metrics *metrics
	current [operations]atomic.Pointer[failing] // nil if the last call succeeded
	log     [operations]throttle
}

// failed records a failure. It logs at most one of each kind every ten seconds.
func (f *faults) failed(logger klog.Logger, op operation, err error) {
	f.metrics.callErrors[op].Inc()
	now := time.Now()
	first := now
	if earlier := f.current[op].Load(); earlier != nil {
		first = earlier.first
	}
	f.current[op].Store(&failing{first: first, latest: now, err: err})
	if f.log[op].allow(now) {
		logger.Error(err, "Queue call failed, will retry", "queue", f.number, "operation", op)
	}
}

// fails reports whether the last call failed.
func (f *faults) fails(op operation) bool { return f.current[op].Load() != nil }

// succeeded ends a series of failures.
func (f *faults) succeeded(op operation) {
	if f.fails(op) {
		f.current[op].Store(nil)
	}
}

// persistent returns an error for each kind of call that has failed for stuckAfter without a
// success. The time after the latest failed call does not count.
func (f *faults) persistent() error {
	var errs []error
	for op := range opClose { // without opClose: a socket is closed only once
		p := f.current[op].Load()
		if p == nil {
			continue
		}
		if d := p.latest.Sub(p.first); d >= stuckAfter {
			errs = append(errs, fmt.Errorf("queue %d: %v has failed for %v: %w", f.number, op, d, p.err))
		}
	}
	return errors.Join(errs...)
}

// permanent reports whether retrying cannot help after this error of the first attempt to bind:
// capabilities are missing, or the kernel has no queues.
func permanent(err error) bool {
	for _, errno := range []unix.Errno{
		unix.EPERM, unix.EACCES, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.ENOSYS,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// throttle lets one event pass every ten seconds.
type throttle struct{ next time.Time }

func (t *throttle) allow(now time.Time) bool {
	if now.Before(t.next) {
		return false
	}
	t.next = now.Add(10 * time.Second)
	return true
}
