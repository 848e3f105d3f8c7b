package queue

import (
	"context"
	"errors"
	"time"
)

// ErrTaken is the error of Kernel.Bind when another process has bound the queue
// number.
var ErrTaken = errors.New("taken by another process")

// Kernel is where queues are bound. The zero Config uses the one of this
// machine; package queuetest has another.
type Kernel interface {
	// Bind opens a socket and binds it to the queue number, with the length,
	// flags and receive buffer of cfg. Its copy mode is none: the kernel drops
	// what is queued until the copy mode is changed. The error wraps
	// ErrTaken when another process has bound the number.
	Bind(ctx context.Context, number uint16, cfg Config) (Socket, error)
	// Stats returns the statistics of all queues of the network namespace, those
	// of other processes included.
	Stats() ([]Stat, error)
	// NewPoller returns a Poller for sockets of this kernel.
	NewPoller() (Poller, error)
}

// Poller waits for packets of several queues. All its methods but Interrupt are called
// from one goroutine, which also calls those of the sockets.
type Poller interface {
	// Wait waits until one of sockets is readable, and returns the index of the first
	// that is. Nil sockets are ignored. At the deadline, unless it is zero, and after
	// Interrupt it returns -1 if none is.
	Wait(sockets []Socket, deadline time.Time) (int, error)
	// Interrupt makes the present and every later Wait return without waiting.
	Interrupt()
	// Close releases the Poller, not the sockets.
	Close() error
}

// Socket is the netlink socket of one bound queue. Its methods are called from one
// goroutine.
type Socket interface {
	// Receive does not wait: it fills ms from the front with the datagrams that have
	// arrived, perhaps none. The error is unix.ENOBUFS when messages were lost since
	// the last call; the socket goes on after it.
	Receive(ms []Message) (int, error)
	// Send hands netlink messages to the kernel, which has acted on them when
	// Send returns.
	Send(msgs []byte) error
	// Close unbinds the queue, which drops what waits in it, and closes the
	// socket. The number is free when Close returns.
	Close() error
}

// Message is the room for one datagram and, after Receive, the datagram Buf[:N].
// A datagram longer than Buf is cut.
type Message struct {
	Buf []byte
	N   int
}

// Stat is the statistics of one queue: a line of
// /proc/net/netfilter/nfnetlink_queue. Its counters start at zero each time the
// queue is bound.
type Stat struct {
	Number       uint16
	PortID       uint32 // netlink port of the socket that is bound to the number
	Waiting      uint32 // packets without an answer
	CopyMode     uint8
	CopyRange    uint32 // bytes
	QueueDropped uint32 // packets that found the queue full
	UserDropped  uint32 // packets that found the receive buffer full
	PacketID     uint32 // id of the latest packet
}
