// Package handover decides which agent of a node reads which queues (Claim), which one writes the
// nftables table (Holder.Stand), and when one that ends may go (Place.Leave). It knows neither how
// queues are read nor how the table is written.
package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queuenum"
)

const (
	// maxRanges is how many ranges of queue numbers are tried. An upgrade needs two, of
	// the agent that runs and of the one that takes over.
	maxRanges = 8
	// releaseTime bounds how long an agent that ends waits for another one to take over,
	// and drainTime how long for the verdicts of packets in its queues. Pending packets
	// get theirs within four seconds. The sum is well below the grace period of the pod.
	releaseTime = 5 * time.Second
	drainTime   = 4500 * time.Millisecond
	pollEvery   = 10 * time.Millisecond
)

// Place is the place of one agent among those of the node: a range of queue numbers that is
// its own until Close.
type Place struct {
	// Numbers are its own. Claim has bound the last one until Close. The queues bind the rest.
	Numbers queuenum.Range
	// Beside reports whether an earlier range was in use: probably by another agent of
	// the node.
	Beside bool

	node  Numbers
	claim io.Closer
}

// Numbers are the queue numbers of the node: a queue.Numbers.
type Numbers interface {
	// Claim binds a number until it is closed. The error wraps queuenum.ErrTaken if
	// another process has bound it.
	Claim(ctx context.Context, number uint16) (io.Closer, error)
	// Stats returns what is bound, by all processes.
	Stats() ([]queuenum.Stat, error)
}

// Claim returns a Place with the first free range at or above want that has the same length. A range
// is free if no process has bound any of its numbers.
func Claim(ctx context.Context, node Numbers, want queuenum.Range) (*Place, error) {
	for i := range min(maxRanges, (1<<16-int(want.First))/int(want.Count)) {
		n := queuenum.Range{First: want.First + uint16(i)*want.Count, Count: want.Count}
		c, err := claimRange(ctx, n, node)
		if err == nil {
			if i > 0 {
				klog.FromContext(ctx).Info("Queue numbers are in use, the next free ones are taken", "wanted", want.First, "first", n.First)
			}
			return &Place{Numbers: n, Beside: i > 0, node: node, claim: c}, nil
		}
		if !errors.Is(err, queuenum.ErrTaken) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("no %d queue numbers in a row are free, from %d up in steps of %[1]d", want.Count, want.First)
}

// claimRange claims n if none of its numbers is bound. The error wraps queuenum.ErrTaken if
// one is.
func claimRange(ctx context.Context, n queuenum.Range, node Numbers) (io.Closer, error) {
	c, err := node.Claim(ctx, uint16(n.Last()))
	if err != nil {
		return nil, err
	}
	stats, err := node.Stats()
	for _, s := range stats {
		if n.Contains(s.Number) && int(s.Number) != n.Last() {
			err = fmt.Errorf("queue %d is %w", s.Number, queuenum.ErrTaken)
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close gives the place up.
func (p *Place) Close() error { return p.claim.Close() }

// Bound reports whether a process has bound a number. It is true if the statistics cannot be read:
// assume another agent.
func (p *Place) Bound(number uint16) bool {
	return p.any(func(s queuenum.Stat) bool { return s.Number == number })
}

// Alone reports whether no number is bound that may be another agent's. It is false if the
// statistics cannot be read: assume another agent.
func (p *Place) Alone() bool {
	reach := maxRanges * int(p.Numbers.Count)
	return !p.any(func(s queuenum.Stat) bool {
		d := int(s.Number) - int(p.Numbers.First)
		return !p.Numbers.Contains(s.Number) && -reach < d && d < reach
	})
}

// any reports whether a bound queue satisfies like, or the statistics cannot be read.
func (p *Place) any(like func(queuenum.Stat) bool) bool {
	stats, err := p.node.Stats()
	return err != nil || slices.ContainsFunc(stats, like)
}

// Received returns how many packets the kernel queued to these numbers, or dropped because a queue
// was full. ok is false if the statistics cannot be read.
func (p *Place) Received(of func(number uint16) bool) (packets uint64, ok bool) {
	stats, err := p.node.Stats()
	for _, s := range stats {
		if of(s.Number) {
			packets += uint64(s.PacketID) + uint64(s.QueueDropped)
		}
	}
	return packets, err == nil
}

// Table is what an agent that ends needs of the table: a *steer.Steerer.
type Table interface {
	HeldByOther() bool
	Release()
}

// Leave is called before the agent ends. If there is another agent on the node, it returns
// when that one has taken over t and each packet in the queues of this one has its verdict.
func (p *Place) Leave(t Table) {
	if !t.HeldByOther() {
		if p.Alone() {
			return
		}
		t.Release()
		await(releaseTime, t.HeldByOther)
	}
	await(drainTime, p.empty)
}

// empty reports whether no packet waits in the queues of this agent.
func (p *Place) empty() bool {
	stats, _ := p.node.Stats()
	return !slices.ContainsFunc(stats, func(s queuenum.Stat) bool { return p.Numbers.Contains(s.Number) && s.Waiting > 0 })
}

// await returns when done returns true, or after the time.
func await(most time.Duration, done func() bool) {
	for end := time.Now().Add(most); !done() && time.Now().Before(end); {
		time.Sleep(pollEvery)
	}
}
