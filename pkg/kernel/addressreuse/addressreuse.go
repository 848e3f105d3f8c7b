// Package addressreuse ends the connections of pods whose address has gone to another pod, or
// to none. The kernel's table of connections has addresses, not pods: without it, the peers of
// a pod would reach the next one at its address. The package decides when packets of an address
// wait, when its entries are removed, and what the nftables table contains of this. It knows addresses
// and numbers of pods, not policies.
package addressreuse

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

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
	// Forget makes the kernel decide the packets of all connections of stale addresses again, also of those
	// that were accepted for an earlier owner while the address was stale.
	Forget func(context.Context, []netip.Addr) error
	// Remove removes the connections of addresses from the kernel's table, but not those that were accepted
	// since Forget.
	Remove func(context.Context, []netip.Addr) error
	// Changed is called when AddSets adds something else without a call of Follow.
	Changed func()
}

// Tracker knows which pod owns each address of the node's pods. An address is stale while the
// kernel may track connections of an earlier owner. Its methods may be called from any
// goroutine.
//
// An address becomes stale with a snapshot in which it has another owner, or none. Its packets are held
// until that is applied to nftables, and what was accepted for the earlier owner is forgotten. From then
// on the kernel asks for a decision for each packet, except for connections that were accepted since. So
// no packet waits for the removal of the other connections, which may be very many.
type Tracker struct {
	cfg      Config
	forgets  *runner.Runner
	removals *runner.Runner

	mu       sync.Mutex
	now      map[netip.Addr]uint32 // the owners in the latest snapshot
	steered  func(netip.Addr) bool // in that
	recorded map[netip.Addr]uint32 // the owners whose connections the kernel may track
	stale    map[netip.Addr]uint64 // by the serial of steer.Sets since which they are
	decided  map[netip.Addr]uint64 // stale ones whose packets are decided for the owner, by the same serial
	serial   uint64                // of the next steer.Sets
	applied  uint64                // serial of the last applied steer.Sets
	health   [2]error              // of the last Forget and Remove
}

// New returns a Tracker that has not seen a snapshot yet.
func New(cfg Config) *Tracker {
	t := &Tracker{
		cfg:      cfg,
		recorded: make(map[netip.Addr]uint32, len(cfg.Recorded)),
		stale:    make(map[netip.Addr]uint64),
		decided:  make(map[netip.Addr]uint64),
	}
	for _, r := range cfg.Recorded {
		t.recorded[r.Addr] = r.Pod
	}
	t.forgets = runner.New(runner.Config{RetryInterval: retryInterval}, t.forget)
	t.removals = runner.New(runner.Config{MinInterval: minInterval, RetryInterval: retryInterval}, t.remove)
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
	t.mu.Unlock()
	t.forgets.Poke()
}

// Run removes the connections of stale addresses until ctx ends. Packets that wait in a queue
// meanwhile keep their removed entry, are decided by the snapshot at the time of their verdict, and
// make no new entry. One that was accepted just before could make an entry after the listing only
// if it took longer to the end of its hook than two transactions.
func (t *Tracker) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "reuse"))
	var removals sync.WaitGroup
	removals.Go(func() { t.removals.Run(ctx) })
	t.forgets.Run(ctx)
	removals.Wait()
	return nil
}

// Any reports whether an address has an owner.
func (t *Tracker) Any() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.recorded) > 0
}

// Healthy returns the errors of the last attempts.
func (t *Tracker) Healthy() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.health[:]...)
}

// forget is one run of a runner.
func (t *Tracker) forget(ctx context.Context) error {
	due := t.due(false)
	if len(due) == 0 {
		return nil
	}
	err := t.cfg.Forget(ctx, sorted(due))
	t.forgotten(due, err)
	t.removals.Poke()
	return err
}

// remove is one run of a runner.
func (t *Tracker) remove(ctx context.Context) error {
	due := t.due(true)
	if len(due) == 0 {
		return nil
	}
	start := time.Now()
	err := t.cfg.Remove(ctx, sorted(due))
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

func sorted(due map[netip.Addr]uint64) []netip.Addr {
	return slices.SortedFunc(maps.Keys(due), netip.Addr.Compare)
}

// due returns the addresses whose connections are to be removed now, if they are decided, or else to be
// forgotten.
func (t *Tracker) due(decided bool) map[netip.Addr]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := make(map[netip.Addr]uint64)
	for a, since := range t.stale {
		if since <= t.applied && (t.decided[a] == since) == decided {
			due[a] = since
		}
	}
	return due
}

// forgotten is called after a Forget for the due addresses. Packets of one whose owner has changed again
// meanwhile are still held, as all are after an error.
func (t *Tracker) forgotten(due map[netip.Addr]uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.health[0] = err
	if err == nil {
		maps.Copy(t.decided, due)
	}
	t.hold()
}

// removed is called after the removal of the connections of the due addresses. An address
// whose owner has changed again meanwhile stays stale, as all do after an error.
func (t *Tracker) removed(due map[netip.Addr]uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.health[1] = err
	if err != nil {
		return
	}
	for a, since := range due {
		if t.stale[a] != since {
			continue
		}
		delete(t.stale, a)
		delete(t.decided, a)
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
	held := make(map[netip.Addr]struct{}, len(t.stale))
	for a, since := range t.stale {
		if t.decided[a] != since && t.steered(a) {
			held[a] = struct{}{}
		}
	}
	t.cfg.Hold(held)
}
