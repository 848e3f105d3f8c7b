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
	// verifyInterval bounds how long a table flushed by somebody else goes
	// unnoticed. Looking costs a dozen short runs of nft.
	verifyInterval = time.Minute
	// syncTimeout ends an nft that hangs.
	syncTimeout = 30 * time.Second
)

// errNoSync is what Healthy says before the first wish is in force.
var errNoSync = errors.New("steering was not synced yet")

// Steerer keeps the table as wished. Its methods may be called from any
// goroutine; Run once.
type Steerer struct {
	cfg     Config
	divert  Divert // never DivertAuto
	nft     knftables.Interface
	runner  *runner.Runner
	metrics *metrics

	// writeXTables writes the chains that queue where nft cannot, else nil.
	writeXTables func(Config) error

	// Of the goroutine that syncs alone.
	held      *held // what the kernel holds; nil when it must be read
	installed ruleHandles
	verified  time.Time

	mu      sync.Mutex
	wish    *wish // the latest
	inForce *wish // the last one that the kernel took
	health  error
}

// wish is Sets, sorted. It is immutable.
type wish struct {
	of    Sets // as it was asked for
	sets  contents
	since time.Time
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
	if divert == DivertXTables && cfg.NFT != nil {
		return nil, fmt.Errorf("divert=%v writes to the kernel and not to Config.NFT", divert)
	}
	cfg.EarlyUDP = cfg.EarlyUDP.choose(caps)
	s := &Steerer{cfg: cfg, divert: divert, nft: cfg.NFT, health: errNoSync}
	if s.nft == nil {
		if s.nft, err = knftables.New(knftables.InetFamily, TableName); err != nil {
			return nil, fmt.Errorf("open table %s: %w", TableName, err)
		}
	}
	if divert == DivertXTables {
		s.writeXTables = writeXTables
	}
	s.runner = runner.New(runner.Config{
		MinInterval:   minInterval,
		RetryInterval: retryInterval,
		MaxInterval:   verifyInterval,
	}, s.sync)
	s.metrics = newMetrics(cfg.Registerer, s)
	s.metrics.describeKernel(divert, caps)
	return s, nil
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
		if old == s.inForce && !sets.Since.IsZero() {
			s.metrics.programming.Observe(time.Since(sets.Since).Seconds())
		}
		return // else it will be in force
	}
	s.wish = &wish{of: sets, sets: sets.contents(), since: sets.Since}
	if old != nil && old != s.inForce && !old.since.IsZero() && (sets.Since.IsZero() || old.since.Before(sets.Since)) {
		s.wish.since = old.since // the old wish's changes wait for this one now
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
		"mark", fmt.Sprintf("%#x", s.cfg.Mark), "sctpPerPacket", s.cfg.SCTPPerPacket, "earlyUDP", s.cfg.EarlyUDP)
	s.runner.Poke()
	s.runner.Run(klog.NewContext(ctx, logger))
	logger.Info("Steering stops, the table stays in force")
	return nil
}

// Healthy returns nil when a wish is in force and the last sync succeeded.
func (s *Steerer) Healthy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.health
}

// sync is one run of the runner. It writes before it verifies, so that no change
// waits for the reading.
func (s *Steerer) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	err := s.syncOnce(ctx)
	if err == nil && time.Since(s.verified) >= verifyInterval {
		s.held = nil
		err = s.syncOnce(ctx)
	}
	return err
}

// syncOnce applies the latest wish and tells what came of it.
func (s *Steerer) syncOnce(ctx context.Context) error {
	s.mu.Lock()
	w := s.wish
	s.mu.Unlock()

	err := s.apply(ctx, w)
	if err != nil {
		s.held = nil // the next run reads before it writes
	}
	s.mu.Lock()
	if s.health = err; err == nil && w == nil {
		s.health = errNoSync // the base alone steers nobody
	}
	first := err == nil && w != nil && s.inForce != w
	if first {
		s.inForce = w
	}
	s.mu.Unlock()
	s.metrics.synced(err, s.held)
	if first && s.cfg.InForce != nil {
		s.cfg.InForce(w.of.Serial)
	}
	if first && !w.since.IsZero() {
		s.metrics.programming.Observe(time.Since(w.since).Seconds())
	}
	return err
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
