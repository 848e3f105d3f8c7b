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
	// reuseInterval collects addresses that become stale at the same time: a pod has
	// two, and a drained node loses many pods.
	reuseInterval = 20 * time.Millisecond
	// reuseRetry is as short as the time for which packets are pending.
	reuseRetry = time.Second
	// reuseRest is the pause after a removal, as a multiple of its duration: removals
	// use at most a fifth of a core.
	reuseRest = 4
)

// remover removes the connections of addresses from the kernel's table.
type remover interface {
	Remove(ctx context.Context, addrs []netip.Addr) error
}

// reuse removes the connections of addresses whose owner has changed.
type reuse struct {
	owners  *owners
	remover remover
	runner  *runner.Runner
	done    func() // called when addresses are no longer stale

	mu     sync.Mutex
	health error
}

func newReuse(o *owners, r remover, done func(), reg prometheus.Registerer) *reuse {
	u := &reuse{owners: o, remover: r, done: done}
	u.runner = runner.New(runner.Config{MinInterval: reuseInterval, RetryInterval: reuseRetry}, u.sync)
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "netpol_stale_addresses",
		Help: "Addresses of this node's pods whose owner has changed and whose connections are not removed yet.",
	}, func() float64 { return float64(o.staleCount()) }))
	return u
}

// applied is called with the serial of each applied steer.Sets.
func (u *reuse) applied(serial uint64) {
	u.owners.markApplied(serial)
	u.runner.Poke()
}

// Run removes what is due until ctx ends.
func (u *reuse) Run(ctx context.Context) error {
	logger := klog.LoggerWithName(klog.FromContext(ctx), "reuse")
	u.runner.Run(klog.NewContext(ctx, logger))
	return nil
}

// Healthy returns the error of the last removal.
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
