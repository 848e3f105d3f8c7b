// Package addressreuse ends the connections of pods whose address has gone to another pod, or
// to none. The kernel's table of connections has addresses, not pods: without it, the peers of
// a pod would reach the next one at its address. The package decides when packets of an address
// wait, when its entries are removed, and what the nftables table has of this. It knows addresses
// and numbers of pods, not policies.
package addressreuse

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

const (
	// minInterval collects addresses that become stale at the same time: a pod has two, and a
	// drained node loses many pods.
	minInterval = 20 * time.Millisecond
	// retryInterval is as short as the time for which packets are held.
	retryInterval = time.Second
	// rest is the pause after a removal, as a multiple of its duration: removals use at most a
	// fifth of a core.
	rest = 4
)

// noOwner is recorded for a stale address, so that the next agent takes every pod for a
// new owner.
const noOwner uint32 = 1

// FirstPod is the least number of a pod.
const FirstPod = noOwner + 1

// Config is what a Tracker works with.
type Config struct {
	// Recorded are the owners that an earlier agent has stored in the nftables table.
	Recorded []steer.Owner
	// Hold is called with the addresses whose packets cannot be decided, each time that they
	// may have changed. It must not call the Tracker.
	Hold func(map[netip.Addr]struct{})
	// Remove removes the connections of addresses from the kernel's table.
	Remove func(context.Context, []netip.Addr) error
	// Changed is called when AddSets adds something else without a call of Follow.
	Changed    func()
	Registerer prometheus.Registerer
}

// Tracker knows which pod owns each address of the node's pods. An address is stale while the
// kernel may track connections of an earlier owner. Its methods may be called from any
// goroutine.
//
// An address becomes stale with a snapshot in which it has another owner, or none. Its
// connections are removed once that snapshot is applied to nftables, so that none can
// be established again without a decision. Its packets are held until the end of
// staleness is applied, too: before, a reply would be taken for a first packet.
type Tracker struct {
	cfg    Config
	runner *runner.Runner

	mu       sync.Mutex
	now      map[netip.Addr]uint32 // the owners in the latest snapshot
	steered  func(netip.Addr) bool // in that
	recorded map[netip.Addr]uint32 // the owners whose connections the kernel may track
	stale    map[netip.Addr]uint64 // by the serial of steer.Sets since which they are
	settling map[netip.Addr]uint64 // no longer stale, by the serial that says so
	serial   uint64                // of the next steer.Sets
	applied  uint64                // serial of the last applied steer.Sets
	health   error                 // of the last removal
}

// New returns a Tracker that has not seen a snapshot yet.
func New(cfg Config) *Tracker {
	t := &Tracker{
		cfg:      cfg,
		recorded: make(map[netip.Addr]uint32, len(cfg.Recorded)),
		stale:    make(map[netip.Addr]uint64),
		settling: make(map[netip.Addr]uint64),
	}
	for _, r := range cfg.Recorded {
		t.recorded[r.Addr] = r.Pod
	}
	t.runner = runner.New(runner.Config{MinInterval: minInterval, RetryInterval: retryInterval}, t.sync)
	cfg.Registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "netpol_stale_addresses",
		Help: "Addresses of this node's pods whose owner has changed and whose connections are not removed yet.",
	}, func() float64 { return float64(t.staleCount()) }))
	return t
}

// Follow is called with the owners of each snapshot before packets are decided by it. steered
// reports whether all packets of a stale address are steered. Those of a pod that no policy
// selects are not, not even those of old connections.
func (t *Tracker) Follow(owners map[netip.Addr]uint32, steered func(netip.Addr) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.now
	t.now, t.steered = owners, steered
	changed := false
	for a, pod := range t.recorded {
		_, stale := t.stale[a]
		if t.now[a] == before[a] && stale || t.now[a] == pod && !stale {
			continue
		}
		t.stale[a], changed = t.serial+1, true
	}
	for a, pod := range t.now {
		if _, known := t.recorded[a]; !known {
			// On a node without a record these may be connections of the current
			// owner. They are kept.
			t.recorded[a] = pod
		}
	}
	t.changed(changed)
}

// AddSets adds the owners and the stale addresses.
func (t *Tracker) AddSets(sets *steer.Sets) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sets.Serial = t.serial
	for _, a := range slices.SortedFunc(maps.Keys(t.recorded), netip.Addr.Compare) {
		owner := steer.Owner{Addr: a, Pod: t.recorded[a]}
		if _, stale := t.stale[a]; stale {
			owner.Pod = noOwner
			if t.steered(a) {
				sets.Stale = append(sets.Stale, a)
			}
		}
		sets.Owners = append(sets.Owners, owner)
	}
}

// Applied is called with the serial of each applied steer.Sets.
func (t *Tracker) Applied(serial uint64) {
	t.mu.Lock()
	t.applied = serial
	maps.DeleteFunc(t.settling, func(_ netip.Addr, since uint64) bool { return since <= serial })
	t.hold()
	t.mu.Unlock()
	t.runner.Poke()
}

// Run removes the connections of stale addresses until ctx ends. Packets that wait in a queue
// meanwhile keep their removed entry, are decided by the snapshot at the time of their verdict, and
// make no new entry. One that was accepted just before could make an entry after the listing only
// if it took longer to the end of its hook than two transactions.
func (t *Tracker) Run(ctx context.Context) error {
	t.runner.Run(klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "reuse")))
	return nil
}

// Any reports whether an address has an owner.
func (t *Tracker) Any() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.recorded) > 0
}

// Healthy returns the error of the last removal.
func (t *Tracker) Healthy() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.health
}

// sync is one run of the runner.
func (t *Tracker) sync(ctx context.Context) error {
	due := t.due()
	if len(due) == 0 {
		return nil
	}
	start := time.Now()
	err := t.cfg.Remove(ctx, slices.SortedFunc(maps.Keys(due), netip.Addr.Compare))
	t.removed(due, err)
	if err == nil {
		t.cfg.Changed()
	}
	select {
	case <-ctx.Done():
	case <-time.After(rest * time.Since(start)):
	}
	return err
}

// due returns the addresses whose connections are to be removed now.
func (t *Tracker) due() map[netip.Addr]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := make(map[netip.Addr]uint64)
	for a, since := range t.stale {
		if since <= t.applied {
			due[a] = since
		}
	}
	return due
}

// removed is called after the removal of the connections of the due addresses. An address
// whose owner has changed again meanwhile stays stale, as all do after an error.
func (t *Tracker) removed(due map[netip.Addr]uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.health = err
	if err != nil {
		return
	}
	for a, since := range due {
		if t.stale[a] != since {
			continue
		}
		delete(t.stale, a)
		t.settling[a] = t.serial + 1
		if pod, ok := t.now[a]; ok {
			t.recorded[a] = pod
		} else {
			delete(t.recorded, a)
		}
	}
	t.changed(len(due) > 0)
}

// changed starts a new serial if anything changed, and updates the held addresses.
func (t *Tracker) changed(really bool) {
	if really {
		t.serial++
	}
	t.hold()
}

// hold is called with the lock held, to keep the order of calls.
func (t *Tracker) hold() {
	held := make(map[netip.Addr]struct{}, len(t.stale)+len(t.settling))
	for a := range t.stale {
		if t.steered(a) {
			held[a] = struct{}{}
		}
	}
	for a := range t.settling {
		held[a] = struct{}{}
	}
	t.cfg.Hold(held)
}

func (t *Tracker) staleCount() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.stale)
}
