package queue

import (
	"context"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queuenum"
)

// ErrTaken is the error of Kernel.Bind when another process has bound the queue
// number.
var ErrTaken = queuenum.ErrTaken

// Kernel binds queues. A zero Config uses Host; package queuetest has a fake.
type Kernel interface {
	// Bind opens a socket and binds it to the queue number, with the length, flags and receive
	// buffer of cfg. Its copy mode is none: until that is changed, the kernel drops packets
	// sent to the queue. The error wraps ErrTaken if another process has bound the number.
	Bind(ctx context.Context, number uint16, cfg Config) (Socket, error)
	// Stats returns the statistics of all queues of the network namespace, including those of
	// other processes.
	Stats() ([]Stat, error)
	// NewPoller returns a Poller for sockets of this kernel.
	NewPoller() (Poller, error)
}

// Poller waits for packets of several queues. All its methods except Interrupt are called from one
// goroutine, which also calls those of the sockets.
type Poller interface {
	// Wait waits until one of sockets is readable, and returns the index of the first one that
	// is. It ignores nil sockets. If none is readable, it returns -1 after Interrupt or at the
	// deadline, unless that is zero.
	Wait(sockets []Socket, deadline time.Time) (int, error)
	// Interrupt makes the current and every later Wait return without waiting.
	Interrupt()
	// Close releases the Poller, not the sockets.
	Close() error
}

// Socket is the netlink socket of one bound queue. Its methods are called from one
// goroutine.
type Socket interface {
	// Receive fills ms from the front with the datagrams that have arrived, perhaps none. It
	// does not block. The error is unix.ENOBUFS if messages were lost since the last call; the
	// socket continues to work.
	Receive(ms []Message) (int, error)
	// Send sends netlink messages. The kernel has handled them when Send returns.
	Send(msgs []byte) error
	// Close unbinds the queue, which drops its packets, and closes the socket. The number is
	// free when Close returns.
	Close() error
}

// Message is a buffer for one datagram, which is Buf[:N] after Receive. A datagram longer than Buf
// is truncated.
type Message struct {
	Buf []byte
	N   int
}

// Stat is the statistics of one queue.
type Stat = queuenum.Stat
