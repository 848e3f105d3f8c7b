// Package queuenum has ranges of NFQUEUE numbers, as rules and agents share them out, and what
// the kernel says of a number.
package queuenum

import (
	"errors"
	"fmt"
)

// ErrTaken is why a number cannot be bound.
var ErrTaken = errors.New("taken by another process")

// Range is Count consecutive numbers from First on. Its last one may be above 65535, which is
// for Validate functions to find.
type Range struct{ First, Count uint16 }

// Last returns the last number of r.
func (r Range) Last() int { return int(r.First) + int(r.Count) - 1 }

// Contains reports whether number is in r.
func (r Range) Contains(number uint16) bool { return number >= r.First && int(number) <= r.Last() }

// Overlaps reports whether r and o have a number in common.
func (r Range) Overlaps(o Range) bool {
	return int(r.First) <= o.Last() && int(o.First) <= r.Last()
}

// All returns the numbers of r.
func (r Range) All() []uint16 {
	var all []uint16
	for i := range r.Count {
		all = append(all, r.First+i)
	}
	return all
}

// String returns r as rules of nftables write it.
func (r Range) String() string {
	if r.Count == 1 {
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last())
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
