package queuetest

import (
	"sync"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
)

// poller implements queue.Poller.
type poller struct {
	kernel        *Kernel
	arrived       chan struct{} // holds a token if a socket may have become readable
	interruptOnce sync.Once
	interrupted   chan struct{}
}

// NewPoller implements queue.Kernel.
func (k *Kernel) NewPoller() (queue.Poller, error) {
	p := &poller{kernel: k, arrived: make(chan struct{}, 1), interrupted: make(chan struct{})}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pollers[p] = struct{}{}
	return p, nil
}

// wake makes all pollers check their sockets again.
func (k *Kernel) wake() {
	for p := range k.pollers {
		select {
		case p.arrived <- struct{}{}:
		default:
		}
	}
}

// Wait implements queue.Poller.
func (p *poller) Wait(sockets []queue.Socket, deadline time.Time) (int, error) {
	var expired <-chan time.Time
	if !deadline.IsZero() {
		expired = time.After(time.Until(deadline))
	}
	for {
		if first, err := p.first(sockets); first >= 0 || err != nil {
			return first, err
		}
		select {
		case <-p.arrived:
		case <-expired:
			return p.first(sockets)
		case <-p.interrupted:
			return p.first(sockets)
		}
	}
}

// first returns the index of the first readable socket, -1 if there is none.
func (p *poller) first(sockets []queue.Socket) (int, error) {
	p.kernel.mu.Lock()
	defer p.kernel.mu.Unlock()
	for i, s := range sockets {
		if s == nil {
			continue
		}
		q := s.(*instance)
		if err := p.kernel.faultLocked(q.stat.Number, Wait); err != nil {
			return -1, err
		}
		if q.readable() {
			return i, nil
		}
	}
	return -1, nil
}

// Interrupt implements queue.Poller.
func (p *poller) Interrupt() { p.interruptOnce.Do(func() { close(p.interrupted) }) }

// Close implements queue.Poller.
func (p *poller) Close() error {
	p.kernel.mu.Lock()
	defer p.kernel.mu.Unlock()
	delete(p.kernel.pollers, p)
	return nil
}
