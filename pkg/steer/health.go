package steer

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// Healthy returns nil when a wish is in force and the last sync succeeded, no wish
// has waited too long, and no other process has changed the table since it was
// verified. It answers also while nft or the kernel hang.
func (s *Steerer) Healthy() error {
	if err := s.commits.doubts().error(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := s.applied
	if oldest.IsZero() {
		oldest = s.waiting
	}
	if d := age(oldest); d >= applyTimeout {
		return fmt.Errorf("a change has waited %v to be in force", d.Round(time.Second))
	}
	if d := age(s.syncing); d >= applyTimeout {
		return fmt.Errorf("writing or reading the table has taken %v", d.Round(time.Second))
	}
	return s.health
}

// age of the zero Time is 0.
func age(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return time.Since(t)
}

// listen follows the commits to nftables until ctx ends, and has the table verified
// when another process has changed it. Without notifications the table is verified
// at intervals only. It calls tried when it listens, or cannot yet.
func (s *Steerer) listen(ctx context.Context, tried func()) {
	logger := klog.FromContext(ctx)
	started := func() {
		s.commits.started() // what came before was missed
		s.runner.Poke()
		tried()
	}
	for {
		err := s.kernel.listen(ctx, started, s.notified)
		s.commits.stopped()
		tried()
		if ctx.Err() != nil {
			return
		}
		s.metrics.lost.Inc()
		logger.Error(err, "Changes of nftables are not notified, will retry", "after", listenRetry)
		select {
		case <-ctx.Done():
			return
		case <-time.After(listenRetry):
		}
	}
}

// notified takes a commit to nftables.
func (s *Steerer) notified(c commit) {
	if c.lost {
		s.metrics.lost.Inc()
	}
	if s.commits.notified(c) {
		s.runner.Poke()
	}
}

// reportInterval bounds how often changes by other processes are logged.
const reportInterval = time.Second

// report counts and logs the changes that other processes made to the table, which
// are about to be verified.
func (s *Steerer) report(ctx context.Context, d doubts) {
	if d.foreign == 0 {
		return
	}
	s.metrics.foreign.WithLabelValues(byNotification).Add(float64(d.foreign))
	if age(s.reported) < reportInterval && !s.reported.IsZero() {
		return
	}
	s.reported = time.Now()
	klog.FromContext(ctx).Info("Another process changed the table", "table", TableName,
		"process", d.last.process, "pid", d.last.pid, "commits", d.foreign)
}
