package verdictcache

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// allowedFor is how long it remembers allowed classes.
const allowedFor = 30 * time.Second

// fakeKernel remembers verdicts as the kernel does.
type fakeKernel struct {
	missing error // what it lacks

	mu      sync.Mutex
	fails   error         // of the next calls
	failing int           // how many calls fail
	commits int           // calls that have changed something
	slow    time.Duration // how long All takes until it yields
	allowed map[packet.Class]*element
	denied  map[packet.Class]*element
}

type element struct {
	packets uint64
	expires time.Time
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{allowed: make(map[packet.Class]*element), denied: make(map[packet.Class]*element)}
}

func (k *fakeKernel) Missing() error { return k.missing }

// accepted handles a verdict of the agent with the mark to remember it.
func (k *fakeKernel) accepted(c packet.Class, d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.allowed[c]
	if e == nil || time.Now().After(e.expires) {
		e = &element{expires: time.Now().Add(d)}
		e.packets++
		k.allowed[c] = e
	}
}

// asks handles a packet. It reports whether the kernel asks the agent, and if not, whether
// the packet passes.
func (k *fakeKernel) asks(c packet.Class) (asks, passes bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, set := range []map[packet.Class]*element{k.denied, k.allowed} {
		if e := set[c]; e != nil && time.Now().Before(e.expires) {
			e.packets++
			_, passes := k.allowed[c]
			_, denied := k.denied[c]
			return false, passes && !denied
		}
	}
	return true, false
}

func (k *fakeKernel) Forget(_ context.Context, allowed, denied []packet.Class) error {
	return k.change(func() {
		for _, c := range allowed {
			delete(k.allowed, c)
		}
		for _, c := range denied {
			delete(k.denied, c)
		}
	})
}

func (k *fakeKernel) ForgetAll(context.Context) error {
	return k.change(func() {
		clear(k.allowed)
		clear(k.denied)
	})
}

func (k *fakeKernel) Deny(_ context.Context, classes []packet.Class, d time.Duration) error {
	return k.change(func() {
		for _, c := range classes {
			if e := k.denied[c]; e == nil || time.Now().After(e.expires) {
				k.denied[c] = &element{expires: time.Now().Add(d)}
			}
		}
	})
}

func (k *fakeKernel) change(do func()) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fail(); err != nil {
		return err
	}
	k.commits++
	do()
	return nil
}

func (k *fakeKernel) All(_ context.Context, yield func(Remembered)) error {
	k.mu.Lock()
	slow := k.slow
	k.mu.Unlock()
	time.Sleep(slow)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fail(); err != nil {
		return err
	}
	for i, set := range []map[packet.Class]*element{k.allowed, k.denied} {
		for c, e := range set {
			if left := time.Until(e.expires); left > 0 {
				yield(Remembered{Class: c, Denied: i == 1, Packets: e.packets, Expires: left})
			}
		}
	}
	return nil
}

// setFails makes the next calls fail.
func (k *fakeKernel) setFails(err error, calls int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fails, k.failing = err, calls
}

// fail returns the error of a call. The caller holds k.mu.
func (k *fakeKernel) fail() error {
	if k.failing == 0 {
		return nil
	}
	k.failing--
	return k.fails
}

func (k *fakeKernel) setSlow(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.slow = d
}

func (k *fakeKernel) sizes() (allowed, denied int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.allowed), len(k.denied)
}

// node is an agent and its kernel, with the classes that policies deny and the fate of
// packets.
type node struct {
	t      *testing.T
	kernel *fakeKernel
	cache  *Cache

	late func() // sends a verdict that was decided before; nil if there is none

	mu      sync.Mutex
	denies  map[packet.Class]bool
	alone   bool
	asked   int // packets about which the agent decided
	counted map[packet.Class]uint64
}

func newNode(t *testing.T) *node {
	n := &node{t: t, kernel: newFakeKernel(), denies: make(map[packet.Class]bool), alone: true, counted: make(map[packet.Class]uint64)}
	n.cache = New(Config{
		Kernel:     n.kernel,
		AllowedFor: allowedFor,
		Evaluate:   n.evaluate,
		Flushed:    n.flush,
		Alone: func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.alone
		},
		Count: func(c packet.Class, _ policy.Decision, packets uint64) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.counted[c] += packets
		},
		Registerer: prometheus.NewRegistry(),
	})
	// Two classes with the same slot would displace each other, and neither would be
	// remembered.
	n.cache.recent.seed = 1
	return n
}

// flush sends the pending verdict.
func (n *node) flush() {
	if n.late != nil {
		n.late()
	}
	n.late = nil
}

func (n *node) evaluate(c packet.Class) (policy.Decision, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.denies[c] {
		return policy.Decision{Action: policy.Deny}, true
	}
	return policy.Decision{Action: policy.Allow}, true
}

// set changes the policies.
func (n *node) set(c packet.Class, denied bool) {
	n.mu.Lock()
	n.denies[c] = denied
	n.mu.Unlock()
	n.cache.Changed(n.t.Context(), []netip.Addr{c.Dst}, false)
}

// send sends the first packet of a connection and reports whether it passes.
func (n *node) send(c packet.Class) bool {
	asks, passes := n.kernel.asks(c)
	if !asks {
		return passes
	}
	n.mu.Lock()
	n.asked++
	n.mu.Unlock()
	d, _ := n.evaluate(c)
	if !d.Allowed() {
		n.cache.Tap(lasting(c, d))
		return false
	}
	if n.cache.Remember(lasting(c, d)) {
		n.kernel.accepted(c, allowedFor)
	}
	return true
}

// lasting is the event of a packet whose decision the kernel may remember.
func lasting(c packet.Class, d policy.Decision) *event.Event {
	return &event.Event{Class: c, Decision: d, Lasting: true}
}

func class(i int) packet.Class {
	return packet.Class{
		Src: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Dst: netip.MustParseAddr("10.2.0.1"),
		Proto: packet.TCP, Port: 80,
	}
}
