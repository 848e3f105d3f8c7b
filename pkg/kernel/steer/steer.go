package steer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft"
)

const (
	// minInterval bounds how often changes are written, so that changes in quick succession
	// share a transaction.
	minInterval = 5 * time.Millisecond
	// retryInterval is short, because a failed sync may have left new pods unsteered.
	retryInterval = time.Second
	// verifyInterval bounds how long a change of the table by another process goes unnoticed if
	// its notification is lost. The table is read only if another process has committed to
	// nftables since.
	verifyInterval = 5 * time.Second
	// syncTimeout bounds a sync. It cannot end a commit that waits in the kernel for that of
	// another process; see Healthy.
	syncTimeout = 5 * time.Second
	// applyTimeout is how long a change may be pending before Healthy fails.
	applyTimeout = 5 * time.Second
	// listenRetry is the time between a failed subscription and the next attempt.
	listenRetry = time.Second
)

// errNotSynced is the result of Healthy before the first desired state is applied.
var errNotSynced = errors.New("steering is not synced yet")

// table writes our table. It is an nft.Table, except in tests.
type table interface {
	RunAt(ctx context.Context, tx *nft.Transaction, generation uint32) error
	Port() uint32
}

// Steerer keeps the table in the desired state. Its methods may be called from any
// goroutine, Run only once.
type Steerer struct {
	cfg     Config // its answers are always false, see Steerer.layout
	divert  Divert // never DivertAuto
	table   table
	kernel  kernel
	runner  *runner.Runner
	metrics *metrics
	commits commits

	verdicts  verdictKernel
	former    formerTable
	tableLock chan struct{}            // full while the table is applied or released, or verdicts or overrides are written
	overrides map[overrideKey]struct{} // in the kernel, or to be written with the table; owned by the holder of tableLock
	inherits  bool                     // the table may have overrides of an earlier agent; owned like them

	leaving   atomic.Bool   // Release was called
	onStandby chan struct{} // wakes watchHolder when another agent writes the table

	mayAnswer bool // the kernel can answer denied packets

	// Owned by the goroutine that syncs.
	answers   bool           // the table answers denied packets
	observed  *observedState // nil if it must be read
	expected  *observedState // the last observed state that was correct, nil before the first
	unsure    bool           // a write after expected may or may not have succeeded
	changed   bool           // another process has changed the table, and it is not repaired yet
	installed base           // as observed after we wrote it
	replace   bool           // repairing the base failed, so create a new table
	flush     bool           // another process may have added verdicts, and they are not flushed yet
	verified  time.Time
	formerDue time.Time // when the former table is looked at next
	// formerQueue is bound by the last agent that held the former table, 0 if none is known.
	formerQueue uint16
	reported    time.Time // when a change by another process was last logged

	mu            sync.Mutex
	desired       *desiredState // the latest
	applied       *desiredState // the last one that is in the kernel
	applyingSince time.Time     // when the change that is being applied became pending, zero if none is
	pendingSince  time.Time     // the same for the change after it
	syncingSince  time.Time     // when the running sync started, zero if none is running
	health        error
	standby       handover.Standby
	holder        handover.Holder // of the table, as last read or written
	inPlace       bool            // the table has our layout, and this agent writes it
	newlyApplied  chan struct{}   // closed when applied changes, nil if nothing waits for it
}

// desiredState is a set of addresses to steer. It is immutable once it is being applied.
type desiredState struct {
	number    uint64 // counts the desired states
	requested Sets
	sets      contents
	closed    bool      // see Steerer.Close
	since     time.Time // when the oldest change in it was observed that had not been applied before
}

// New returns a Steerer that has not accessed the kernel yet. caps is a result of Probe. It returns an
// error if cfg is not valid or caps does not support Config.Divert.
func New(cfg Config, caps Capabilities) (*Steerer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("steer: %w", err)
	}
	divert, err := cfg.Divert.choose(caps)
	if err != nil {
		return nil, err
	}
	cfg.Divert, cfg.EarlyUDP = divert, cfg.EarlyUDP.choose(caps)
	cfg.SourceCheck = cfg.SourceCheck && caps.checksSources()
	table, err := newTable(cfg)
	if err != nil {
		return nil, err
	}
	return newSteerer(cfg, caps, table, netlinkKernel{kept: &keptConn{}}, &netlinkVerdicts{reads: netlinkKernel{kept: &keptConn{}}}), nil
}

// newTable requires a Config without automatic choices.
func newTable(cfg Config) (*nft.Table, error) {
	cfg.answers = true
	return nft.New(knftables.InetFamily, TableName, nft.Options{Sets: tableSets(cfg), XTables: cfg.Divert == DivertXTables})
}

// newSteerer requires a valid Config without automatic choices.
func newSteerer(cfg Config, caps Capabilities, t table, k kernel, v verdictKernel) *Steerer {
	s := &Steerer{cfg: cfg, divert: cfg.Divert, table: t, kernel: k, verdicts: v, former: netlinkFormer{}, health: errNotSynced,
		mayAnswer: caps.Answers(),
		overrides: make(map[overrideKey]struct{}), inherits: true,
		onStandby: make(chan struct{}, 1), tableLock: make(chan struct{}, 1)}
	s.runner = runner.New(runner.Config{
		MinInterval:   minInterval,
		RetryInterval: retryInterval,
		MaxInterval:   verifyInterval,
	}, s.sync)
	s.cfg.Parts = slices.DeleteFunc(slices.Clone(cfg.Parts), func(p Part) bool { return !p.begin(s, caps) })
	s.metrics = newMetrics(cfg.Registerer, s)
	s.metrics.describeKernel(caps)
	return s
}

// Divert returns the chosen Divert, never DivertAuto.
func (s *Steerer) Divert() Divert { return s.divert }

// Set makes sets the desired state and schedules a write, unless it equals the current one. The caller
// must not change sets afterwards. Set does not wait for the kernel.
func (s *Steerer) Set(sets Sets) { s.set(sets, false) }

// Close adds sets to what an earlier run steers, so that their first packets wait until the first Set.
// A table with another layout, of another version or an operator, stays unchanged until the first Set.
// After that, Close does nothing.
func (s *Steerer) Close(sets Sets) { s.set(sets, true) }

// after returns the contents of a table with the contents have after d is applied to it.
func (d *desiredState) after(have contents) contents {
	if !d.closed {
		return d.sets
	}
	all := Sets{}.contents()
	for _, c := range []contents{have, d.sets} {
		for set, e := range c {
			maps.Copy(all[set], e)
		}
	}
	for _, set := range []string{ingressRangesSet, egressRangesSet} {
		var ranges []netip.Prefix
		for _, f := range families {
			name := familyName(set, f.ipv6)
			for e := range all[name] {
				ranges = append(ranges, e.prefix)
			}
			clear(all[name])
		}
		all.addPrefixes(set, ranges)
	}
	return all
}

// nextNumber returns the number of the state after d, which is nil before the first.
func (d *desiredState) nextNumber() uint64 {
	if d == nil {
		return 1
	}
	return d.number + 1
}

// final reports whether d came from Set, not Close, so that packets can be decided. It is false for
// nil.
func (d *desiredState) final() bool { return d != nil && !d.closed }

func (s *Steerer) set(sets Sets, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.desired
	if closed && old.final() {
		return
	}
	if old != nil && old.closed == closed && old.requested.equal(sets) {
		switch {
		case sets.Since.IsZero():
		case old == s.applied:
			s.metrics.programming.Observe(time.Since(sets.Since).Seconds())
		case old.since.IsZero():
			old.requested.Since, old.since = sets.Since, sets.Since // applied when old is
		}
		return
	}
	s.desired = &desiredState{number: old.nextNumber(), requested: sets, sets: sets.contents(), closed: closed, since: sets.Since}
	if old != nil && old != s.applied && !old.since.IsZero() && (sets.Since.IsZero() || old.since.Before(sets.Since)) {
		s.desired.since = old.since // pending changes of old are now part of this one
	}
	if s.pendingSince.IsZero() {
		s.pendingSince = time.Now()
	}
	s.runner.Poke()
}

// Run creates the table and writes desired states to it until ctx ends. It leaves the table in place,
// so that a restart opens no gap. Until the first desired state is applied, the elements of an earlier
// run stay; without an earlier run there is no table. While another agent holds the table, Run does not
// write it, see Holder.
func (s *Steerer) Run(ctx context.Context) error {
	logger := klog.LoggerWithName(klog.FromContext(ctx), "steer")
	logger.Info("Steering started", "table", TableName, "divert", s.divert,
		"queue", s.cfg.Queue, "queues", s.cfg.Queues, "observeQueue", s.cfg.ObserveQueue, "bypass", s.cfg.Bypass,
		"mark", fmt.Sprintf("%#x", s.cfg.Mark), "sctpPerPacket", s.cfg.SCTPPerPacket, "earlyUDP", s.cfg.EarlyUDP, "sourceCheck", s.cfg.SourceCheck,
		"share", s.cfg.Share, "overflowQueue", s.cfg.OverflowQueue, "auditQueue", s.cfg.AuditQueue)
	ctx = klog.NewContext(ctx, logger)
	var listening sync.WaitGroup
	tried := make(chan struct{})
	listening.Go(func() { s.listen(ctx, sync.OnceFunc(func() { close(tried) })) })
	listening.Go(func() { s.watchHolder(ctx) })
	<-tried // or else our first commits would not be notified
	if s.hasTable(ctx) {
		s.runner.Poke()
	}
	s.runner.Run(ctx)
	listening.Wait()
	logger.Info("Steering stopped, the table stays in place")
	return nil
}

// hasTable reports whether a table may exist, with any layout. Without one, nothing is written before
// the first desired state, which would otherwise wait for minInterval while its packets pass.
func (s *Steerer) hasTable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	exists, err := s.kernel.exists(ctx)
	return exists || err != nil
}
