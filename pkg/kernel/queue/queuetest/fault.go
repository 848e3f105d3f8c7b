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
	Wait       Operation = "wait"      // waiting for packets of several queues, including this one
	Receive    Operation = "receive"
	Send       Operation = "send"        // the kernel handles no message
	SendPartly Operation = "send partly" // the kernel handles the first message
	SendWholly Operation = "send wholly" // the kernel handles all messages
	Verdict    Operation = "verdict"     // the kernel refuses a verdict
	Close      Operation = "close"       // the socket is closed regardless of the error
	Stats      Operation = "stats"       // not about one queue: use number 0
)

// Always as the number of failures means that an operation never succeeds.
const Always = math.MaxInt

type call struct {
	number uint16
	op     Operation
}

type fault struct {
	left int
	err  error
}

// Fail makes the next n calls of an operation on the queue number return err. For Configure and
// Verdict, which the kernel reports in a message, it must be a unix.Errno. With n = 0 the operation
// succeeds again.
func (k *Kernel) Fail(number uint16, op Operation, n int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults[call{number, op}] = &fault{left: n, err: err}
	k.wake()
}

// fault returns the error for this call of the operation, nil if it succeeds.
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

// refusal returns the error number with which the kernel answers a message.
func (q *instance) refusal(op Operation) unix.Errno {
	errno, _ := q.kernel.faultLocked(q.stat.Number, op).(unix.Errno)
	return errno
}
