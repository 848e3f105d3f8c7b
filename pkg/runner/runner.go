// Package runner drives a level-triggered sync: many changes coalesce into one
// run, a failed run is tried again, and a quiet one is repeated now and then to
// mend drift. It knows nothing of what is synced.
package runner

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"
)

// Config holds the intervals of a Runner.
type Config struct {
	// MinInterval is the least time between the starts of two runs. Pokes that
	// arrive earlier share one run. Zero runs at every poke.
	MinInterval time.Duration
	// Settle is how long a run waits after a poke for the pokes that come along
	// with it. Zero does not wait.
	Settle time.Duration
	// RetryInterval is how long after a failed run the next one starts when
	// nothing pokes before.
	RetryInterval time.Duration
	// MaxInterval is the most time between two runs when nothing pokes. Zero
	// means that only pokes and failures start a run.
	MaxInterval time.Duration
}

// Validate names every field that cannot work.
func (c Config) Validate() error {
	var errs []error
	if c.MinInterval < 0 {
		errs = append(errs, errors.New("MinInterval is negative"))
	}
	if c.Settle < 0 {
		errs = append(errs, errors.New("Settle is negative"))
	}
	if c.RetryInterval <= 0 {
		errs = append(errs, errors.New("RetryInterval is not positive"))
	}
	if c.MaxInterval < 0 {
		errs = append(errs, errors.New("MaxInterval is negative"))
	}
	return errors.Join(errs...)
}

// Runner calls a sync function from one goroutine, the one that calls Run.
type Runner struct {
	cfg  Config
	sync func(context.Context) error
	poke chan struct{}
}

// New returns a Runner that calls sync. It starts nothing. A faulty Config is a
// programmer's error and panics.
func New(cfg Config, sync func(context.Context) error) *Runner {
	if err := cfg.Validate(); err != nil {
		panic("runner: " + err.Error())
	}
	return &Runner{cfg: cfg, sync: sync, poke: make(chan struct{}, 1)}
}

// Poke asks for a run that starts after this call. It never blocks and may be
// called from any goroutine, also before Run.
func (r *Runner) Poke() {
	select {
	case r.poke <- struct{}{}:
	default: // a run is asked for already
	}
}

// Run calls sync until ctx ends: once per poke, with pokes coalesced over
// MinInterval. An error of sync is logged here and leads to a retry.
func (r *Runner) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	var due <-chan time.Time // the retry or the periodic run, nil for neither
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.poke:
			if !sleep(ctx, r.cfg.Settle) {
				return
			}
			r.settled()
		case <-due:
		}
		started := time.Now()
		due = nil
		if err := r.sync(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			logger.Error(err, "Sync failed, will retry", "after", r.cfg.RetryInterval)
			due = time.After(r.cfg.RetryInterval)
		} else if r.cfg.MaxInterval > 0 {
			due = time.After(r.cfg.MaxInterval)
		}
		if !sleep(ctx, r.cfg.MinInterval-time.Since(started)) {
			return
		}
	}
}

// settled forgets a poke that came while the run was waiting.
func (r *Runner) settled() {
	select {
	case <-r.poke:
	default:
	}
}

// sleep waits for d and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
