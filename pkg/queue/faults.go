package queue

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// operation is a kind of call to the kernel that can fail on its own.
type operation int

const (
	opBind      operation = iota // open a socket and bind the queue number
	opConfigure                  // set the copy mode
	opWait                       // wait for packets; of the queue of the highest priority
	opReceive                    // receive packets
	opSend                       // send verdicts
	opClose                      // close the socket
	operations
)

func (o operation) String() string {
	return [operations]string{"bind", "configure", "wait", "receive", "send", "close"}[o]
}

// A call that fails is made again a few times, with pauses of firstPause, twice
// that, and so on: 15 ms together, for which the other queues of the worker wait, too.
// Then the socket is closed and the queue bound again, at most every bindEvery.
const (
	attempts   = 5
	firstPause = time.Millisecond
)

// failing is a series of failed calls of one kind, without a success in between.
type failing struct {
	first, latest time.Time
	err           error // the latest
}

// faults counts, logs and remembers the calls of one queue that failed. failed and
// worked belong to the goroutine that serves the queue; persistent may be called from
// any.
type faults struct {
	number  uint16
	metrics *metrics
	now     [operations]atomic.Pointer[failing] // nil: the last call succeeded
	log     [operations]throttle
}

// failed records a failure. It logs at most one of each kind in ten seconds.
func (f *faults) failed(logger klog.Logger, op operation, err error) {
	f.metrics.callErrors[op].Inc()
	now := time.Now()
	first := now
	if earlier := f.now[op].Load(); earlier != nil {
		first = earlier.first
	}
	f.now[op].Store(&failing{first: first, latest: now, err: err})
	if f.log[op].allow(now) {
		logger.Error(err, "Queue call failed, will retry", "queue", f.number, "operation", op)
	}
}

// fails reports whether the last call failed.
func (f *faults) fails(op operation) bool { return f.now[op].Load() != nil }

// worked ends a series of failures.
func (f *faults) worked(op operation) {
	if f.fails(op) {
		f.now[op].Store(nil)
	}
}

// persistent returns an error for each kind of call that has failed for stuckAfter
// without a success. A call that is not made does not add to that.
func (f *faults) persistent() error {
	var errs []error
	for op := range opClose { // to close has no later success
		p := f.now[op].Load()
		if p == nil {
			continue
		}
		if d := p.latest.Sub(p.first); d >= stuckAfter {
			errs = append(errs, fmt.Errorf("queue %d: %v has failed for %v: %w", f.number, op, d, p.err))
		}
	}
	return errors.Join(errs...)
}

// hopeless reports whether after this error of the first attempt to bind no later one
// can succeed: rights are missing, or the kernel has no queues.
func hopeless(err error) bool {
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
