// Package runner drives a level-triggered sync: changes coalesce into one run, a failed run
// is retried, and periodic runs correct drift. It does not know what is synced.
package runner

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"
)

// Config holds the intervals of a Runner.
type Config struct {
	// MinInterval is the minimum time between the starts of two runs. Pokes that arrive
	// earlier share one run. Zero runs at every poke. PokeNow ignores it.
	MinInterval time.Duration
	// Delay is how long a run waits after a poke for further pokes. Zero does not wait, and
	// neither does PokeNow.
	Delay time.Duration
	// RetryInterval is the time between a failed run and its retry.
	RetryInterval time.Duration
	// MaxInterval is the maximum time between two runs. Zero means that only pokes and
	// failures start a run.
	MaxInterval time.Duration
}

// Validate returns an error that names every invalid field.
func (c Config) Validate() error {
	var errs []error
	if c.MinInterval < 0 {
		errs = append(errs, errors.New("MinInterval is negative"))
	}
	if c.Delay < 0 {
		errs = append(errs, errors.New("Delay is negative"))
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

// New returns a Runner that calls sync. It starts nothing, and panics if cfg is invalid.
func New(cfg Config, sync func(context.Context) error) *Runner {
	if err := cfg.Validate(); err != nil {
		panic("runner: " + err.Error())
	}
	return &Runner{cfg: cfg, sync: sync, poke: make(chan struct{}, 1), now: make(chan struct{}, 1)}
}

// Poke asks for a run that starts after this call. It never blocks and may be called from
// any goroutine, also before Run.
func (r *Runner) Poke() { Signal(r.poke) }

// PokeNow is like Poke, but the run waits only for the one in progress.
func (r *Runner) PokeNow() { Signal(r.now) }

// Signal wakes the receiver of c, which has room for one signal: further ones until it is
// received are the same. It never blocks.
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run calls sync until ctx ends: once per poke, with pokes coalesced over
// MinInterval. An error of sync is logged here and leads to a retry.
func (r *Runner) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	var due <-chan time.Time // the retry or the periodic run, nil if there is none
	var next time.Time       // the earliest start of a run that can wait
	for {
		var wait time.Duration
		select {
		case <-ctx.Done():
			return
		case <-r.now:
		case <-r.poke:
			// Wait before this run rather than after the previous one: a timer wakes the process,
			// and most runs are not followed by a poke that soon.
			wait = max(0, time.Until(next)) + r.cfg.Delay
		case <-due:
			wait = time.Until(next)
		}
		if !r.sleep(ctx, wait) {
			return
		}
		r.begun()
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

// begun discards the pokes that the starting run covers.
func (r *Runner) begun() {
	for _, pokes := range []chan struct{}{r.poke, r.now} {
		select {
		case <-pokes:
		default:
		}
	}
}

// sleep waits for d or PokeNow, and reports whether ctx is still alive.
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
