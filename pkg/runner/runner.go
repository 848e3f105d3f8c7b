// Package runner drives a level-triggered sync: changes coalesce into one run, a failed
// run is retried, and runs repeat periodically to correct drift. It does not know what
// is synced.
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
	// arrive earlier share one run. Zero runs at every poke. PokeNow does not wait
	// for it.
	MinInterval time.Duration
	// Settle is how long a run waits after a poke for further pokes. Zero does not
	// wait, and neither does PokeNow.
	Settle time.Duration
	// RetryInterval is the time between a failed run and its retry.
	RetryInterval time.Duration
	// MaxInterval is the longest time between two runs. Zero means that only pokes
	// and failures start a run.
	MaxInterval time.Duration
}

// Validate returns an error that names every invalid field.
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
	now  chan struct{}
}

// New returns a Runner that calls sync. It starts nothing. It panics if
// cfg is not valid.
func New(cfg Config, sync func(context.Context) error) *Runner {
	if err := cfg.Validate(); err != nil {
		panic("runner: " + err.Error())
	}
	return &Runner{cfg: cfg, sync: sync, poke: make(chan struct{}, 1), now: make(chan struct{}, 1)}
}

// Poke asks for a run that starts after this call. It never blocks and may be
// called from any goroutine, also before Run.
func (r *Runner) Poke() { put(r.poke) }

// PokeNow is like Poke, but the run waits for nothing except the end of the one in
// progress.
func (r *Runner) PokeNow() { put(r.now) }

// put does nothing if a run is pending already.
func put(pokes chan struct{}) {
	select {
	case pokes <- struct{}{}:
	default:
	}
}

// Run calls sync until ctx ends: once per poke, with pokes coalesced over
// MinInterval. An error of sync is logged here and leads to a retry.
func (r *Runner) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	var due <-chan time.Time // the retry or the periodic run, nil for neither
	var next time.Time       // no run that can wait starts before
	for {
		var wait time.Duration
		select {
		case <-ctx.Done():
			return
		case <-r.now:
		case <-r.poke:
			// Not after a run: a timer wakes the process, and most runs are not followed
			// by a poke that soon.
			wait = max(0, time.Until(next)) + r.cfg.Settle
		case <-due:
			wait = time.Until(next)
		}
		if !r.sleep(ctx, wait) {
			return
		}
		r.settled()
		next = time.Now().Add(r.cfg.MinInterval)
		due = nil
		if err := r.sync(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			logger.Error(err, "Sync failed, retrying", "after", r.cfg.RetryInterval)
			due = time.After(r.cfg.RetryInterval)
		} else if r.cfg.MaxInterval > 0 {
			due = time.After(r.cfg.MaxInterval)
		}
	}
}

// settled discards the pokes that the run that begins now is for.
func (r *Runner) settled() {
	for _, pokes := range []chan struct{}{r.poke, r.now} {
		select {
		case <-pokes:
		default:
		}
	}
}

// sleep waits for d, or until PokeNow, and reports whether ctx is still alive.
func (r *Runner) sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-r.now:
		return true
	case <-time.After(d):
		return true
	}
}
