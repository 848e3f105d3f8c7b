package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/queue"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
)

const (
	// maxRanges is how many ranges of queue numbers are tried. An upgrade needs two, of
	// the agent that runs and of the one that takes over.
	maxRanges = 8
	// releaseTime bounds how long an agent that ends waits for another one to take over,
	// and drainTime how long for the verdicts of packets in its queues. Pending packets
	// get theirs within four seconds. The sum is well below the grace period of the pod.
	releaseTime  = 5 * time.Second
	drainTime    = 4500 * time.Millisecond
	handoverPoll = 10 * time.Millisecond
)

// numbers is the range of queue numbers of one agent. The last one is bound for all its
// life, see queue.Claim.
type numbers struct{ first, count int }

// numbers returns the range of this agent.
func (c Config) numbers() numbers { return numbers{int(c.Queue), 2*int(c.Queues) + 3} }

func (n numbers) last() int { return n.first + n.count - 1 }

func (n numbers) contains(number uint16) bool {
	return int(number) >= n.first && int(number) <= n.last()
}

// claim returns cfg with the first range of queue numbers from cfg.Queue up that no
// process uses, and the claim of its last number.
func claim(ctx context.Context, cfg Config, kernel queue.Kernel) (Config, *queue.Claim, error) {
	for i, n := 0, cfg.numbers(); i < maxRanges && n.last() <= 0xffff; i++ {
		c, err := claimRange(ctx, n, kernel)
		if err == nil {
			if i > 0 {
				klog.FromContext(ctx).Info("Queue numbers are in use, the next free ones are taken", "wanted", cfg.Queue, "first", n.first)
			}
			cfg.Queue, cfg.beside = uint16(n.first), i > 0
			return cfg, c, nil
		}
		if !errors.Is(err, queue.ErrTaken) {
			return cfg, nil, err
		}
		n.first += n.count
	}
	n := cfg.numbers()
	return cfg, nil, fmt.Errorf("no %d queue numbers in a row are free, from %d up in steps of %[1]d", n.count, n.first)
}

// claimRange claims n if none of its numbers is bound. The error wraps queue.ErrTaken if
// one is.
func claimRange(ctx context.Context, n numbers, kernel queue.Kernel) (*queue.Claim, error) {
	c, err := queue.NewClaim(ctx, kernel, uint16(n.last()))
	if err != nil {
		return nil, err
	}
	stats, err := kernel.Stats()
	for _, s := range stats {
		if n.contains(s.Number) && int(s.Number) != n.last() {
			err = fmt.Errorf("queue %d is %w", s.Number, queue.ErrTaken)
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// StartTime returns the time since the machine started, as Config.Started has it.
func StartTime() (uint32, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0, fmt.Errorf("read the time since boot: %w", err)
	}
	return uint32(time.Duration(t.Nano()) / (100 * time.Millisecond)), nil
}

// peers implements steer.Agents.
type peers struct {
	kernel queue.Kernel
	queues []served
}

// Bound implements steer.Agents. Without statistics another agent may well be there.
func (p *peers) Bound(number uint16) bool {
	stats, err := p.kernel.Stats()
	for _, s := range stats {
		if s.Number == number {
			return true
		}
	}
	return err != nil
}

// Listening implements steer.Agents.
func (p *peers) Listening() bool {
	for _, q := range p.queues {
		if !q.Bound() {
			return false
		}
	}
	return true
}

// others reports whether a number is bound that may be another agent's. Without statistics
// one may well be there.
func (p *peers) others(own numbers) bool {
	stats, err := p.kernel.Stats()
	reach := maxRanges * own.count
	for _, s := range stats {
		if d := int(s.Number) - own.first; !own.contains(s.Number) && -reach < d && d < reach {
			return true
		}
	}
	return err != nil
}

// received returns how many packets the queues with these numbers got, including those that
// they had no room for.
func (p *peers) received(of func(number uint16) bool) (packets uint64, ok bool) {
	stats, err := p.kernel.Stats()
	for _, s := range stats {
		if of(s.Number) {
			packets += uint64(s.PacketID) + uint64(s.QueueDropped)
		}
	}
	return packets, err == nil
}

// empty reports whether no packet waits in the queues of n.
func (p *peers) empty(n numbers) bool {
	stats, _ := p.kernel.Stats()
	for _, s := range stats {
		if n.contains(s.Number) && s.Waiting > 0 {
			return false
		}
	}
	return true
}

// drain returns when no packet waits in the queues of n, or after drainTime.
func (p *peers) drain(n numbers) {
	await(drainTime, func() bool { return p.empty(n) })
}

// table is what an agent that ends needs of the table: a *steer.Steerer.
type table interface {
	HeldByOther() bool
	Release()
}

// leave is called before the agent with the numbers own ends. If there is another agent on
// the node, it returns when that one has taken over t and each packet in the queues of this
// one has its verdict.
func (p *peers) leave(t table, own numbers) {
	if !t.HeldByOther() {
		if !p.others(own) {
			return
		}
		t.Release()
		await(releaseTime, t.HeldByOther)
	}
	p.drain(own)
}

// await returns when done returns true, or after the time.
func await(most time.Duration, done func() bool) {
	for end := time.Now().Add(most); !done() && time.Now().Before(end); {
		time.Sleep(handoverPoll)
	}
}

// holder identifies this agent. cfg has its queue numbers.
func (c Config) holder() steer.Holder {
	return steer.Holder{Started: c.Started, Queue: uint16(c.numbers().last())}
}
