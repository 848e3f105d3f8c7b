// Package queuetest is a kernel that has nothing but packet queues. Like the
// real one it numbers packets, keeps each until it is answered, drops when a
// queue or a receive buffer is full, and gives a queue number to one socket only.
//
// It stands at the socket: queue.Queues run on it unchanged, down to the bytes
// of the netlink messages. It sleeps only where the real one waits, and works in
// the bubbles of testing/synctest.
package queuetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"sigs.k8s.io/kube-network-policies/pkg/queue"
)

// Kernel implements queue.Kernel. Its methods may be called from any goroutine.
type Kernel struct {
	mu       sync.Mutex
	queues   map[uint16]*instance // those bound
	lastPort uint32
	changed  chan struct{} // closed, and replaced, when a copy mode changes
	pollers  map[*poller]struct{}
	faults   map[call]*fault
	writes   map[uint16]int // by queue number
}

// New returns a Kernel without queues.
func New() *Kernel {
	return &Kernel{
		queues:  map[uint16]*instance{},
		changed: make(chan struct{}),
		pollers: map[*poller]struct{}{},
		faults:  map[call]*fault{},
		writes:  map[uint16]int{},
	}
}

// AwaitListener waits until packets sent to the queue number are received, or
// ctx ends.
func (k *Kernel) AwaitListener(ctx context.Context, number uint16) error {
	for {
		k.mu.Lock()
		q, changed := k.queues[number], k.changed
		listening := q != nil && q.stat.CopyMode != copyNone
		k.mu.Unlock()
		if listening {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("await listener of queue %d: %w", number, context.Cause(ctx))
		case <-changed:
		}
	}
}

// Packet is a packet on its way into a queue.
type Packet struct {
	Payload []byte
	Mark    uint32
	// ToHost is set if it was queued at the input hook, else at postrouting.
	ToHost bool
	// Link is the index of the interface by which it came in, 0 for none.
	Link uint32
	// Bypass is the flag of the rule that queues the packet: accept it when
	// no process listens.
	Bypass bool
}

// Send queues p to the queue number, as a rule of the firewall would. It does
// not wait for the verdict: the Fate reports it.
func (k *Kernel) Send(number uint16, p Packet) *Fate {
	f := &Fate{mark: p.Mark, done: make(chan struct{})}
	k.mu.Lock()
	defer k.mu.Unlock()
	if q := k.queues[number]; q != nil {
		q.enqueue(p, f)
		return f
	}
	if p.Bypass {
		f.end(Bypassed)
	} else {
		f.end(NoListener)
	}
	return f
}

// Inject puts a datagram into the receive buffer of the queue number, for what a
// malformed or unexpected messages. It panics when the number is not bound.
func (k *Kernel) Inject(number uint16, datagram []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.queues[number].deliver(datagram)
}

// Forget drops all packets that wait in any queue, as the real kernel does when
// a table of nftables is deleted. Verdicts on them come too late.
func (k *Kernel) Forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, q := range k.queues {
		q.flush()
	}
}

// Take binds the queue number as another process would, which answers nothing.
// It panics when the number is bound already. The function it returns makes the
// number free again.
func (k *Kernel) Take(number uint16) (release func()) {
	q, err := k.bind(number, queue.Config{MaxLen: queue.DefaultMaxLen, ReceiveBuffer: queue.DefaultReceiveBuffer})
	if err != nil {
		panic(err)
	}
	return func() { q.Close() }
}

// Bind implements queue.Kernel.
func (k *Kernel) Bind(_ context.Context, number uint16, cfg queue.Config) (queue.Socket, error) {
	if err := k.fault(number, Bind); err != nil {
		return nil, err
	}
	q, err := k.bind(number, cfg)
	if err != nil {
		return nil, err // not a nil *instance, which is no nil Socket
	}
	return q, nil
}

func (k *Kernel) bind(number uint16, cfg queue.Config) (*instance, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.queues[number] != nil {
		return nil, fmt.Errorf("queue %d is %w", number, queue.ErrTaken)
	}
	k.lastPort++
	q := &instance{
		kernel:  k,
		cfg:     cfg,
		stat:    queue.Stat{Number: number, PortID: k.lastPort},
		waiting: map[uint32]*Fate{},
	}
	k.queues[number] = q
	return q, nil
}

// Writes returns how often messages were sent to the kernel by sockets of the queue
// number.
func (k *Kernel) Writes(number uint16) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writes[number]
}

// Stats implements queue.Kernel.
func (k *Kernel) Stats() ([]queue.Stat, error) {
	if err := k.fault(0, Stats); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var stats []queue.Stat
	for _, q := range k.queues {
		s := q.stat
		s.Waiting = uint32(len(q.waiting))
		stats = append(stats, s)
	}
	slices.SortFunc(stats, func(a, b queue.Stat) int { return cmp.Compare(a.Number, b.Number) })
	return stats, nil
}
