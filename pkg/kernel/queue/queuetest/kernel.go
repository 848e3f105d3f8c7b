// Package queuetest is a fake kernel with nothing but packet queues. Like the real one it numbers
// packets, keeps each until its verdict, drops packets when a queue or a receive buffer is full,
// and binds a queue number to one socket only.
//
// It replaces the socket: queue.Queues runs on it unchanged, down to the bytes of the netlink
// messages. It waits only where the real one does, and works in testing/synctest bubbles.
package queuetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
)

// Kernel implements queue.Kernel. Its methods may be called from any goroutine.
type Kernel struct {
	mu       sync.Mutex
	queues   map[uint16]*instance // the bound ones
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

// AwaitListener waits until the queue number has a listener, or ctx ends.
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

// Packet is a packet to be queued.
type Packet struct {
	Payload []byte
	Mark    uint32
	// ToHost is set if it is queued at the input hook, otherwise at postrouting.
	ToHost bool
	// Link is the index of the interface on which it arrived, and OutLink of that on which it
	// leaves, 0 for none.
	Link, OutLink uint32
	// Bypass is the flag of the rule that queues the packet: accept it if no process listens.
	Bypass bool
}

// Send queues p to the queue number, as a queue statement would. It does not wait for the verdict,
// which the Fate reports.
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

// Inject puts a datagram into the receive buffer of the queue number, such as a malformed or
// unexpected message. It panics if the number is not bound.
func (k *Kernel) Inject(number uint16, datagram []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.queues[number].deliver(datagram)
}

// Forget drops the packets in all queues, as the real kernel does when an nftables table is
// deleted. Verdicts on them come too late.
func (k *Kernel) Forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, q := range k.queues {
		q.flush()
	}
}

// Take binds the queue number for another process, which answers nothing. It panics if the number
// is already bound. The returned function frees the number.
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
		return nil, err // a nil *instance would not be a nil Socket
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

// Writes returns how often the sockets of the queue number have sent messages to the kernel.
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
