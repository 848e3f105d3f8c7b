package agent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/runner"
)

const (
	// reuseInterval gathers addresses that go at the same time: a pod has two, and a
	// drained node loses many pods.
	reuseInterval = 20 * time.Millisecond
	// reuseRetry is as short as the time for which packets are held.
	reuseRetry = time.Second
	// reuseRest is how long the removal rests after a run, as a multiple of what the
	// run took: it uses a fifth of a core at most.
	reuseRest = 4
)

// remover removes the connections of addresses from the kernel's table.
type remover interface {
	Remove(ctx context.Context, addrs []netip.Addr) error
}

// reuse removes the connections of addresses that have changed hands.
type reuse struct {
	owners  *owners
	remover remover
	runner  *runner.Runner
	done    func() // called when addresses are not stale any more

	mu     sync.Mutex
	health error
}

func newReuse(o *owners, r remover, done func(), reg prometheus.Registerer) *reuse {
	u := &reuse{owners: o, remover: r, done: done}
	u.runner = runner.New(runner.Config{MinInterval: reuseInterval, RetryInterval: reuseRetry}, u.sync)
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "netpol_stale_addresses",
		Help: "Addresses of this node's pods that have changed hands and whose connections are not removed yet.",
	}, func() float64 { return float64(o.staleCount()) }))
	return u
}

// inForce is told the serial of each wish that has come into force.
func (u *reuse) inForce(serial uint64) {
	u.owners.reached(serial)
	u.runner.Poke()
}

// Run removes what is due until ctx ends.
func (u *reuse) Run(ctx context.Context) error {
	logger := klog.LoggerWithName(klog.FromContext(ctx), "reuse")
	u.runner.Run(klog.NewContext(ctx, logger))
	return nil
}

// Healthy returns nil unless connections could not be removed that should have been.
func (u *reuse) Healthy() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.health
}

// sync is one run of the runner.
func (u *reuse) sync(ctx context.Context) error {
	due := u.owners.due()
	if len(due) == 0 {
		return nil
	}
	start := time.Now()
	err := u.remover.Remove(ctx, slices.SortedFunc(maps.Keys(due), netip.Addr.Compare))
	u.mu.Lock()
	u.health = err
	u.mu.Unlock()
	if err == nil {
		u.owners.removed(due)
		u.done()
	}
	rest(ctx, reuseRest*time.Since(start))
	return err
}

// rest waits for d, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
