package steer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/runner"
)

const (
	// minInterval bounds how often changes are written. A run of nft takes some
	// 5 ms of a core.
	minInterval = 25 * time.Millisecond
	// retryInterval is short, because a failed sync may have left new pods
	// unsteered.
	retryInterval = time.Second
	// verifyInterval bounds how long a change of the table by another process goes
	// unnoticed if it is not notified. The table is read only if anybody has
	// committed to nftables since.
	verifyInterval = 5 * time.Second
	// syncTimeout ends an nft that hangs.
	syncTimeout = 5 * time.Second
	// applyTimeout is how long a change may wait to be in force.
	applyTimeout = 5 * time.Second
	// listenRetry is how long after an error commits are listened for again.
	listenRetry = time.Second
)

// errNoSync is what Healthy says before the first wish is in force.
var errNoSync = errors.New("steering was not synced yet")

// Steerer keeps the table as wished. Its methods may be called from any
// goroutine; Run once.
type Steerer struct {
	cfg     Config
	divert  Divert // never DivertAuto
	nft     knftables.Interface
	kernel  kernel
	runner  *runner.Runner
	metrics *metrics
	commits commits

	// writeXTables writes the chains that queue where nft cannot, else nil.
	writeXTables func(Config) error

	// Of the goroutine that syncs alone.
	held      *held // what the kernel holds; nil when it must be read
	expected  *held // what it held when we last knew, nil before the first time
	unsure    bool  // a write has begun since expected, and not all of it is known to have succeeded
	changed   bool  // another process has changed the table, which is not put right yet
	installed base  // as it was when we laid it
	replace   bool  // the base could not be put right: make a new table
	verified  time.Time
	reported  time.Time // when a change by another process was last logged

	mu      sync.Mutex
	wish    *wish     // the latest
	inForce *wish     // the last one that the kernel took
	applied time.Time // when the wish that is being applied was first waited for; zero: none
	waiting time.Time // the same of the wish behind it
	syncing time.Time // since when a sync runs; zero: none does
	health  error
}

// wish is Sets, sorted. It is immutable.
type wish struct {
	of    Sets // as it was asked for
	sets  contents
	since time.Time // of the first change that waits for it: its own, or one of a wish that it replaces
}

// New returns a Steerer that has not touched the kernel yet. caps comes from
// Probe; a Config.Divert that it does not offer is an error, as is a missing
// nft program. A faulty Config is refused whole.
func New(cfg Config, caps Capabilities) (*Steerer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("steer: %w", err)
	}
	divert, err := cfg.Divert.choose(caps)
	if err != nil {
		return nil, err
	}
	nft, err := newProgram()
	if err != nil {
		return nil, fmt.Errorf("open table %s: %w", TableName, err)
	}
	cfg.Divert, cfg.EarlyUDP = divert, cfg.EarlyUDP.choose(caps)
	cfg.SourceCheck = cfg.SourceCheck && caps.checksSources()
	s := newSteerer(cfg, caps, nft, netlinkKernel{chains(cfg)})
	if divert == DivertXTables {
		s.writeXTables = writeXTables
	}
	return s, nil
}

// newSteerer takes a Config that is valid and settled.
func newSteerer(cfg Config, caps Capabilities, nft knftables.Interface, k kernel) *Steerer {
	s := &Steerer{cfg: cfg, divert: cfg.Divert, nft: nft, kernel: k, health: errNoSync}
	s.runner = runner.New(runner.Config{
		MinInterval:   minInterval,
		RetryInterval: retryInterval,
		MaxInterval:   verifyInterval,
	}, s.sync)
	s.metrics = newMetrics(cfg.Registerer, s)
	s.metrics.describeKernel(s.divert, caps)
	return s
}

// Divert is the way into the queue that was chosen, never DivertAuto.
func (s *Steerer) Divert() Divert { return s.divert }

// Set keeps the latest wish and has it written soon, unless it is the one before
// over again. sets must not change any more. It never blocks for longer than sorting
// them takes.
func (s *Steerer) Set(sets Sets) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.wish
	if old != nil && old.of.equal(sets) {
		switch {
		case sets.Since.IsZero():
		case old == s.inForce:
			s.metrics.programming.Observe(time.Since(sets.Since).Seconds())
		case old.since.IsZero():
			old.of.Since, old.since = sets.Since, sets.Since // in force when old is
		}
		return
	}
	s.wish = &wish{of: sets, sets: sets.contents(), since: sets.Since}
	if old != nil && old != s.inForce && !old.since.IsZero() && (sets.Since.IsZero() || old.since.Before(sets.Since)) {
		s.wish.since = old.since // the old wish's changes wait for this one now
	}
	if s.waiting.IsZero() {
		s.waiting = time.Now()
	}
	s.runner.Poke()
}

// Run makes the table, retrying, and then writes wishes until ctx ends. It
// leaves everything in force, so that a restart opens no gap. Before the first
// wish the elements of an earlier run stay.
func (s *Steerer) Run(ctx context.Context) error {
	logger := klog.LoggerWithName(klog.FromContext(ctx), "steer")
	logger.Info("Steering starts", "table", TableName, "divert", s.divert,
		"queue", s.cfg.Queue, "queues", s.cfg.Queues, "observeQueue", s.cfg.ObserveQueue, "bypass", s.cfg.Bypass,
		"mark", fmt.Sprintf("%#x", s.cfg.Mark), "sctpPerPacket", s.cfg.SCTPPerPacket, "earlyUDP", s.cfg.EarlyUDP, "sourceCheck", s.cfg.SourceCheck,
		"share", s.cfg.Share, "overflowQueue", s.cfg.OverflowQueue)
	ctx = klog.NewContext(ctx, logger)
	var listening sync.WaitGroup
	tried := make(chan struct{})
	listening.Go(func() { s.listen(ctx, sync.OnceFunc(func() { close(tried) })) })
	<-tried // so that the first commits are known to be ours
	s.runner.Poke()
	s.runner.Run(ctx)
	listening.Wait()
	logger.Info("Steering stops, the table stays in force")
	return nil
}

// Cleanup removes the table with all that is in it. Packets that wait in any
// queue of the network namespace are dropped by that. A table that does not
// exist is no error.
func Cleanup(ctx context.Context) error {
	nft, err := knftables.New(knftables.InetFamily, TableName)
	if err != nil {
		return fmt.Errorf("remove table %s: %w", TableName, err)
	}
	return cleanup(ctx, nft)
}

func cleanup(ctx context.Context, nft knftables.Interface) error {
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{}) // deleting what does not exist is an error
	tx.Delete(&knftables.Table{})
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("remove table %s: %w", TableName, err)
	}
	return nil
}
