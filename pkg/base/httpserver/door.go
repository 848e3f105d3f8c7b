package httpserver

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// door lets the clients of a group begin TLS handshakes at a pace. The next one is that of the client
// that has begun none for the longest time, so a client that comes once does not wait for those that
// come again and again. Of equal ones the latest is next: its client still waits. Nothing is read of a
// connection before its turn.
type door struct {
	closed  prometheus.Counter // connections by this door
	limiter *rate.Limiter
	each    int // connections of one client that may wait
	wake    chan struct{}

	mu      sync.Mutex
	waiting []*arrival               // in the order of arrival
	running []*arrival               // oldest first
	begun   memory[client, struct{}] // when clients began
}

// arrival is a connection whose handshake has not ended.
type arrival struct {
	*connection
	client client
	at     time.Time
}

func newDoor(closed prometheus.Counter, limit rate.Limit, each int) *door {
	return &door{
		closed: closed, limiter: rate.NewLimiter(limit, bounds.HandshakeRate), each: each, wake: make(chan struct{}, 1),
		begun: newMemory[client, struct{}](bounds.RecentClients, bounds.RecentFor),
	}
}

// enter has a connection wait, and closes one of too many: the oldest of a client with more than
// each, or else the one that is furthest from its turn.
func (d *door) enter(conn *connection, c client) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = append(d.waiting, &arrival{conn, c, time.Now()})
	counts := d.counts()
	switch {
	case counts[c] > d.each:
		d.refuse(d.waiting[slices.IndexFunc(d.waiting, func(a *arrival) bool { return a.client == c })])
	case len(d.waiting) > bounds.HandshakeWaiting:
		// MaxFunc returns the oldest of equal ones.
		d.refuse(slices.MaxFunc(d.waiting, func(a, b *arrival) int {
			return cmp.Or(d.order(a, b), cmp.Compare(counts[a.client], counts[b.client]))
		}))
	}
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// counts returns how many connections of each client wait.
func (d *door) counts() map[client]int {
	counts := map[client]int{}
	for _, a := range d.waiting {
		counts[a.client]++
	}
	return counts
}

// order compares when the clients of two connections last began. Never comes first.
func (d *door) order(a, b *arrival) int {
	return d.begun.get(a.client).at.Compare(d.begun.get(b.client).at)
}

func (d *door) refuse(a *arrival) {
	d.closed.Inc()
	d.waiting = remove(d.waiting, a)
	_ = a.Conn.Close()
}

func remove(all []*arrival, a *arrival) []*arrival {
	return slices.DeleteFunc(all, func(other *arrival) bool { return other == a })
}

// run calls shake for connections in their turns, until ctx ends. All calls have returned when it does.
func (d *door) run(ctx context.Context, shake func(context.Context, *arrival)) {
	var shakes sync.WaitGroup
	defer shakes.Wait()
	defer d.close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		}
		for d.waits() {
			if d.limiter.Wait(ctx) != nil {
				return
			}
			if a := d.begin(); a != nil {
				shakes.Go(func() {
					shake(ctx, a)
					d.end(a)
				})
			}
		}
	}
}

func (d *door) waits() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting) > 0
}

// begin returns the next connection whose handshake begins. It closes those that have waited too long,
// and the oldest of too many handshakes: some peers never end one.
func (d *door) begin() *arrival {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.waiting) > 0 && time.Since(d.waiting[0].at) >= bounds.HandshakeTime {
		d.refuse(d.waiting[0])
	}
	if len(d.waiting) == 0 {
		return nil
	}
	next := d.waiting[0]
	for _, a := range d.waiting[1:] {
		if d.order(a, next) <= 0 {
			next = a
		}
	}
	d.waiting = remove(d.waiting, next)
	d.begun.set(next.client, struct{}{})
	if len(d.running) >= bounds.HandshakeRunning {
		d.closed.Inc()
		_ = d.running[0].Conn.Close()
		d.running = d.running[1:]
	}
	d.running = append(d.running, next)
	return next
}

// end takes a connection off the handshakes, so that it is not closed as one of too many.
func (d *door) end(a *arrival) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running = remove(d.running, a)
}

func (d *door) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range slices.Concat(d.waiting, d.running) {
		_ = a.Conn.Close()
	}
	d.waiting = nil
}
