// Package queue owns NFQUEUE: it binds queue numbers, receives packets in batches, calls a
// Handler for each, answers every packet exactly once, and exports the kernel's counters. It
// does not know the contents of a packet, where it comes from or why it was queued.
//
// A packet without a verdict stays in the kernel's queue forever. Therefore every failure (a
// malformed message, a Handler that panics or cannot decide yet) still ends in a verdict, and
// the verdict of last resort is Drop.
package queue

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queuenum"
)

// Verdict is the answer to one packet.
type Verdict uint8

const (
	Drop        Verdict = iota // the zero value, so a forgotten assignment fails closed
	Accept                     // the packet passes
	Defer                      // no verdict yet: the packet is pending, and the Handler is called again shortly
	DeferLong                  // like Defer, but for a longer time and with a separate limit on pending packets
	AcceptClass                // like Accept, and the packet gets Config.ClassMark
	Reject                     // like Drop; with Packet.Answerable, the table answers the packet before it drops it
)

// Packet is a packet that waits for its verdict.
type Packet struct {
	// Payload starts with the network header, is truncated at Config.CopyRange and may be
	// empty. It is valid only during the call.
	Payload []byte
	// ToHost is set if the packet was queued at the input hook, so it is for this machine.
	ToHost bool
	// Link is the index of the interface on which the packet arrived, 0 if there is none. It
	// is that of a bridge rather than of its port.
	Link uint32
	// OutLink is likewise the interface on which it leaves, 0 at prerouting and input.
	OutLink uint32
	// Answerable is set if the packet was queued at a hook before postrouting, and is not for this
	// machine.
	Answerable bool
	// Marked is set if the packet had Config.AcceptMark alone when it was queued.
	Marked bool
	// Established is set if it had Config.EstablishedMark: it is of an established connection. Reply is set
	// if it had that alone: it does not have the direction of the packet that opened the connection.
	Established, Reply bool
	// Pending is set if the Handler has already returned Defer or DeferLong for the packet.
	Pending bool
	// Last is set if the packet cannot be or stay pending: the Handler must decide now, and
	// Defer and DeferLong count as Drop.
	Last bool
}

// Handler decides one packet. It is called concurrently for packets of different queues. If it
// blocks, it stops its queue.
type Handler func(Packet) Verdict

const (
	// DefaultMaxLen absorbs a burst of 8,192 packets twice over.
	DefaultMaxLen = 2 * 8192
	// DefaultCopyRange covers an IPv6 header, hundreds of bytes of extension headers and a TCP
	// header. Packets are truncated on purpose: never compare with the IP length.
	DefaultCopyRange = 512
	// DefaultReceiveBuffer holds DefaultMaxLen messages. The kernel charges 832 bytes for each,
	// or 1280 if the payload fills DefaultCopyRange, and grants twice the requested size. Its
	// default holds only 260 messages, regardless of the length of the queue.
	DefaultReceiveBuffer = 10 << 20

	// MaxCopyRange is the longest payload that fits into a netlink attribute. Up to that
	// length packets can be whole.
	MaxCopyRange = 0xffff - attrHeaderLen

	maxPending      = 512                  // packets with the verdict Defer that may be pending per queue
	unsharedPending = 256                  // up to this number, all of them may be from one source
	maxPendingEach  = 32                   // above it, packets from a source with this number are not deferred
	retryFewEvery   = 5 * time.Millisecond // interval between two calls for up to fewPending packets
	fewPending      = 32
	retryEvery      = 20 * time.Millisecond // the interval for more of them

	bindEvery    = 100 * time.Millisecond // interval between two attempts to bind
	bindAttempts = 30                     // while the kernel answers EINVAL
	drainTime    = time.Second            // limit for answering the waiting packets at the end
	stuckAfter   = 10 * time.Second       // not alive if packets wait so long and none is answered

	batchLen = 64 // packets per receive, and verdicts per send
	// gatherTime is how long packets gather while several arrive at a time. It halves the CPU
	// time of a flood, and adds little to the latency of connections during one.
	gatherTime = 100 * time.Microsecond
	// lowerGatherTime is the same for packets of a lower priority.
	lowerGatherTime = 200 * time.Microsecond
)

// Config says which queues to serve, and how.
type Config struct {
	// First and Count give the queue numbers: First, First+1, … First+Count-1.
	First, Count uint16
	// MaxLen is how many packets may wait in each of the kernel's queues. Zero means
	// DefaultMaxLen.
	MaxLen uint32
	// CopyRange is how many bytes of each packet the kernel copies. Zero means
	// DefaultCopyRange.
	CopyRange uint32
	// ReceiveBuffer is the requested size in bytes of the receive buffer of each queue's
	// socket. Zero means DefaultReceiveBuffer.
	ReceiveBuffer int
	// FailOpen makes the kernel accept a packet that finds the queue or the receive buffer
	// full. The kernel does not count such packets.
	FailOpen bool
	// FailOpenOnPanic accepts a packet whose Handler panicked.
	FailOpenOnPanic bool
	// AcceptMark is OR-ed into the mark of every accepted packet, for the base chains after
	// the queue. Zero leaves marks alone.
	AcceptMark uint32
	// ClassMark is OR-ed into the mark of packets with the verdict AcceptClass, and cleared in
	// the marks of other accepted packets. Zero leaves marks alone.
	ClassMark uint32
	// RejectMark is OR-ed into the mark of packets with the verdict Reject, and AcceptMark is cleared.
	// The kernel then continues with the next base chain, which must answer and drop the packet. With
	// zero, Reject is Drop.
	RejectMark uint32
	// EstablishedMark is cleared in the marks of accepted packets. Zero marks none.
	EstablishedMark uint32
	// Purpose is the value of the label "purpose" of all metrics, for Queues that share a
	// Registerer. Empty means no label.
	Purpose string
	// Registerer receives the metrics of the package.
	Registerer prometheus.Registerer
	// Source returns the source of a packet, so that the limits on pending packets can be
	// shared among sources. Nil means that all packets have the same source.
	Source func(payload []byte) netip.Addr
	// Kernel binds the queues. Nil means Host.
	Kernel Kernel
}

func (c Config) numbers() queuenum.Range { return queuenum.Range{First: c.First, Count: c.Count} }

// Validate returns an error that names every invalid field, and its value.
func (c Config) Validate() error {
	var errs []error
	if c.Count == 0 {
		errs = append(errs, errors.New("Count is 0"))
	}
	if c.numbers().Last() > 0xffff {
		errs = append(errs, fmt.Errorf("First %d and Count %d reach beyond queue number 65535", c.First, c.Count))
	}
	if c.CopyRange > MaxCopyRange {
		errs = append(errs, fmt.Errorf("CopyRange %d is above %d", c.CopyRange, MaxCopyRange))
	}
	if c.ReceiveBuffer < 0 {
		errs = append(errs, fmt.Errorf("ReceiveBuffer %d is negative", c.ReceiveBuffer))
	}
	if c.RejectMark != 0 && (c.AcceptMark == 0 || c.AcceptMark == c.RejectMark) {
		errs = append(errs, fmt.Errorf("RejectMark %#x needs another AcceptMark than %#x", c.RejectMark, c.AcceptMark))
	}
	if c.Registerer == nil {
		errs = append(errs, errors.New("Registerer is nil"))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	if c.MaxLen == 0 {
		c.MaxLen = DefaultMaxLen
	}
	if c.CopyRange == 0 {
		c.CopyRange = DefaultCopyRange
	}
	if c.ReceiveBuffer == 0 {
		c.ReceiveBuffer = DefaultReceiveBuffer
	}
	if c.Kernel == nil {
		c.Kernel = Host{}
	}
	return c
}
