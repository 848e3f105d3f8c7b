// Package queue owns NFQUEUE: it binds queue numbers, receives packets in batches,
// calls a Handler for each, answers every packet exactly once, and exports the
// kernel's counters. It does not know what is in a packet, where it comes from and why
// it was queued.
//
// A packet without an answer stays in the kernel's queue for ever. Therefore whatever
// goes wrong with one packet (a message that does not parse, a Handler that panics or
// cannot decide yet) still ends in a verdict, and the verdict of last resort is Drop.
package queue

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Verdict is the answer to one packet.
type Verdict uint8

const (
	Drop      Verdict = iota // the zero value, so a forgotten assignment fails closed
	Accept                   // the packet passes
	Defer                    // no verdict yet: the packet is pending, and Handler is called again shortly
	DeferLong                // as Defer, but for longer, and in a room of its own: neither takes room from the other
	Remember                 // as Accept, and the packet gets Config.RememberMark
)

// Packet is a packet that waits for its verdict.
type Packet struct {
	// Payload starts with the network header, is cut at Config.CopyRange and may
	// be empty. It is valid only during the call.
	Payload []byte
	// ToHost is set if the packet was queued at the input hook: it is for this
	// machine itself.
	ToHost bool
	// Link is the index of the interface by which the packet came in, a bridge rather than
	// its port. It is 0 if there is none.
	Link uint32
	// Marked is set if the packet had Config.AcceptMark when it was queued.
	Marked bool
	// Pending is set if the Handler has returned Defer or DeferLong for the packet before.
	Pending bool
	// Last is set if the packet cannot be pending, or not any longer: Handler has
	// to decide, and Defer and DeferLong count as Drop.
	Last bool
}

// Handler decides one packet. Handlers of different queues run at the same time. One
// that blocks stops its queue.
type Handler func(Packet) Verdict

const (
	// DefaultMaxLen absorbs a burst of 8,192 packets twice over.
	DefaultMaxLen = 2 * 8192
	// DefaultCopyRange covers an IPv6 header, hundreds of bytes of extension headers
	// and a TCP header. Packets are cut on purpose: never compare with the IP length.
	DefaultCopyRange = 512
	// DefaultReceiveBuffer holds DefaultMaxLen messages. The kernel charges each
	// 832 bytes, or 1280 where DefaultCopyRange is used up, and grants twice what is
	// asked for; its own default holds 260 messages, whatever the length of the queue.
	DefaultReceiveBuffer = 10 << 20

	// MaxCopyRange is the longest payload that fits into a netlink attribute:
	// packets that are not longer are whole.
	MaxCopyRange = 0xffff - attrHeaderLen

	maxPending      = 512 // pending packets per queue at one time
	unsharedPending = 256 // of which one source may have so many,
	maxPendingEach  = 32  // and only so many once all sources together have that many
	maxPendingTime  = time.Second
	maxPendingLong  = 1280                  // packets with DeferLong per queue at one time, beside the others,
	longPendingTime = 4 * time.Second       // which are pending for so long: kubelets that start 150 pods at once take 3.6 s for a status
	retryEvery      = 20 * time.Millisecond // interval between two calls for pending packets

	bindEvery    = 100 * time.Millisecond // interval between two attempts to bind
	bindAttempts = 30                     // as long as the kernel answers EINVAL
	drainTime    = time.Second            // most time to answer what still waits at the end
	stuckAfter   = 10 * time.Second       // packets wait and none is answered: not alive

	batchLen = 64 // packets per receive, verdicts per send
	// gatherTime is how long packets gather while they come several at a time. It
	// halves the CPU time of a flood, and is lost in what connections take then.
	gatherTime = 100 * time.Microsecond
	// lowerGatherTime is the same for packets of a lower priority.
	lowerGatherTime = 200 * time.Microsecond
)

// Config says which queues to serve, and how.
type Config struct {
	// First and Count give the queue numbers: First, First+1, … First+Count-1.
	First, Count uint16
	// MaxLen is how many packets the kernel keeps per queue until they are
	// answered. Zero means DefaultMaxLen.
	MaxLen uint32
	// CopyRange is how many bytes of each packet the kernel copies. Zero means
	// DefaultCopyRange.
	CopyRange uint32
	// ReceiveBuffer is the size in bytes asked for the receive buffer of each
	// queue's socket. Zero means DefaultReceiveBuffer.
	ReceiveBuffer int
	// FailOpen makes the kernel accept a packet that finds the queue or the
	// receive buffer full. The kernel counts such packets nowhere.
	FailOpen bool
	// FailOpenOnPanic accepts a packet whose Handler panicked.
	FailOpenOnPanic bool
	// AcceptMark is OR-ed into the mark of every accepted packet, for base
	// chains behind the queue to see. Zero leaves marks alone.
	AcceptMark uint32
	// RememberMark is OR-ed into the mark of the packets with the verdict Remember, and
	// removed from those of other accepted packets. Zero leaves marks alone.
	RememberMark uint32
	// Purpose is the value of the label purpose that all metrics get, for Queues
	// that share a Registerer. Empty means no label.
	Purpose string
	// Registerer receives the metrics of the package.
	Registerer prometheus.Registerer
	// Source returns the source of a packet, so that no source takes all the room
	// for pending packets. Nil means that all packets are of one source.
	Source func(payload []byte) netip.Addr
	// Kernel is where the queues are. Nil means Host.
	Kernel Kernel
}

// Validate returns an error that names every invalid field, and its value.
func (c Config) Validate() error {
	var errs []error
	if c.Count == 0 {
		errs = append(errs, errors.New("Count is 0"))
	}
	if last := int(c.First) + int(c.Count); last > 1<<16 {
		errs = append(errs, fmt.Errorf("First %d and Count %d reach beyond queue number 65535", c.First, c.Count))
	}
	if c.CopyRange > MaxCopyRange {
		errs = append(errs, fmt.Errorf("CopyRange %d is above %d", c.CopyRange, MaxCopyRange))
	}
	if c.ReceiveBuffer < 0 {
		errs = append(errs, fmt.Errorf("ReceiveBuffer %d is negative", c.ReceiveBuffer))
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
