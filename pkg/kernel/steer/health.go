package steer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// Healthy returns nil if a desired state is applied, the last sync succeeded, no desired state has
// been pending for too long, and no other process has changed the table since it was verified.
// While another agent holds the table, it returns nil if there is a desired state, unless this
// agent is about to take over. It does not block, even if the kernel hangs.
func (s *Steerer) Healthy() error {
	// Both are of interest where another process owns the table: what it changed cannot be verified
	// because nothing can be written.
	return errors.Join(s.commits.unverified().error(), s.synced())
}

// synced is Healthy without changes by other processes.
func (s *Steerer) synced() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := s.applyingSince
	if oldest.IsZero() {
		oldest = s.pendingSince
	}
	if d := age(oldest); d >= applyTimeout {
		return fmt.Errorf("a change has been pending for %v", d.Round(time.Second))
	}
	if d := age(s.syncingSince); d >= applyTimeout {
		return fmt.Errorf("writing or reading the table has taken %v so far: another process may hold nftables", d.Round(time.Second))
	}
	return s.health
}

// age returns 0 for the zero Time.
func age(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return time.Since(t)
}

// listen receives notifications of nftables commits until ctx ends, and triggers a verification
// when another process has changed the table. Without notifications the table is verified only at
// intervals. It calls tried after its first attempt to subscribe, whether or not that succeeded:
// the first sync must wait until then, so that it misses no commits.
func (s *Steerer) listen(ctx context.Context, tried func()) {
	logger := klog.FromContext(ctx)
	first := true
	started := func() {
		s.commits.started() // earlier commits are unknown
		if !first {
			s.runner.Poke()
		}
		tried()
	}
	for ; ; first = false {
		err := s.kernel.listen(ctx, started, s.notified)
		s.commits.stopped()
		tried()
		if ctx.Err() != nil {
			return
		}
		logger.Error(err, "Notifications of nftables changes failed, retrying", "after", listenRetry)
		select {
		case <-ctx.Done():
			return
		case <-time.After(listenRetry):
		}
	}
}

func (s *Steerer) notified(c commit) {
	c.own = c.port != 0 && (c.port == s.table.Port() || c.port == s.verdicts.port())
	if s.commits.notified(c) {
		s.runner.Poke()
	}
}

// reportInterval is the least time between two logs of changes by other processes.
const reportInterval = time.Second

// report counts and logs changes of the table by other processes, before they are verified.
func (s *Steerer) report(ctx context.Context, d unverified) {
	if d.external == 0 {
		return
	}
	s.metrics.external.WithLabelValues(byNotification).Add(float64(d.external))
	if age(s.reported) < reportInterval && !s.reported.IsZero() {
		return
	}
	s.reported = time.Now()
	klog.FromContext(ctx).Info("Another process changed the table", "table", TableName,
		"process", d.last.process, "pid", d.last.pid, "commits", d.external)
}
