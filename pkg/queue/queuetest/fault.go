package queuetest

import (
	"math"

	"golang.org/x/sys/unix"
)

// Operation is a call to the kernel that can be made to fail.
type Operation string

const (
	Bind       Operation = "bind"
	Configure  Operation = "configure" // the message that sets the copy mode is refused
	Wait       Operation = "wait"      // to wait for packets of a set of queues with this one
	Receive    Operation = "receive"
	Send       Operation = "send"        // the kernel acts on no message
	SendPartly Operation = "send partly" // the kernel acts on the first message
	SendWholly Operation = "send wholly" // the kernel acts on all messages
	Verdict    Operation = "verdict"     // the kernel refuses a verdict
	Close      Operation = "close"       // the socket is closed nevertheless
	Stats      Operation = "stats"       // of no number in particular: 0
)

// Always is the number of failures of an operation that never succeeds.
const Always = math.MaxInt

type call struct {
	number uint16
	op     Operation
}

type fault struct {
	left int
	err  error
}

// Fail makes the next n calls of an operation on the queue number return err, which
// is a unix.Errno for what the kernel reports in a message: Configure and Verdict. With
// n = 0 the operation succeeds again.
func (k *Kernel) Fail(number uint16, op Operation, n int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults[call{number, op}] = &fault{left: n, err: err}
	k.wake()
}

// fault returns the error that the operation is to fail with now.
func (k *Kernel) fault(number uint16, op Operation) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.faultLocked(number, op)
}

func (k *Kernel) faultLocked(number uint16, op Operation) error {
	f := k.faults[call{number, op}]
	if f == nil || f.left == 0 {
		return nil
	}
	f.left--
	return f.err
}

// refusal is the error number with which the kernel answers a message.
func (q *instance) refusal(op Operation) unix.Errno {
	errno, _ := q.kernel.faultLocked(q.stat.Number, op).(unix.Errno)
	return errno
}
