package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/conntrack"
)

// stage is a part of the agent: how it follows a snapshot, its loops, its readiness, and how
// it ends.
type stage struct {
	name string
	off  bool // switched off by the configuration, or not supported by the kernel

	// follow makes a new snapshot effective in this part, after all earlier stages have
	// followed it. It is nil if the stage does not follow snapshots. why gives the reason for
	// its position.
	follow func(context.Context, change)
	why    string
	// joint stages follow a snapshot with steering.mu held, so that resteer never writes
	// parts of two snapshots.
	joint bool

	begin func(context.Context) // called before the loops of this stage and of later ones
	loops []loop                // run until their context ends
	ready func() error          // nil is always ready
	leave func()                // blocks until the loops of all stages may end
}

type loop = func(context.Context) error

// stages are in the order in which they follow a snapshot, and begin.
type stages []stage

// change is a new snapshot and how it differs from the one before.
type change struct {
	before   *policy.Snapshot // nil for the first
	snapshot *policy.Snapshot
	local    bool      // the node's own pods changed
	since    time.Time // when the oldest cluster change in it was observed
	listed   bool      // it was listed from the API server, not read from a saved state
	// affected returns the connections whose verdict may differ from that of before.
	affected func() conntrack.Change
}

// follow calls the follow functions of all stages in order. mu is held during joint ones.
func (l stages) follow(ctx context.Context, c change, mu sync.Locker) {
	locked := false
	for _, s := range l {
		if s.off || s.follow == nil {
			continue
		}
		if s.joint != locked {
			locked = s.joint
			if locked {
				mu.Lock()
			} else {
				mu.Unlock()
			}
		}
		s.follow(ctx, c)
	}
	if locked {
		mu.Unlock()
	}
}

// run runs the loops of all stages until one fails, or until ctx ends and all have left:
// packets need verdicts until another agent has taken over, which may be after ctx ends.
func (l stages) run(ctx context.Context) error {
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	stop := context.AfterFunc(ctx, func() {
		defer end()
		for _, s := range l {
			if !s.off && s.leave != nil {
				s.leave()
			}
		}
	})
	defer stop()
	group, work := errgroup.WithContext(work)
	for _, s := range l {
		if s.off {
			continue
		}
		if s.begin != nil {
			s.begin(work)
		}
		for _, loop := range s.loops {
			group.Go(func() error { return loop(work) })
		}
	}
	return group.Wait()
}

// ready returns the reasons why stages are not ready, nil if all are.
func (l stages) ready() error {
	var errs []error
	for _, s := range l {
		if s.off || s.ready == nil {
			continue
		}
		errs = append(errs, s.ready())
	}
	return errors.Join(errs...)
}

// because returns a ready function that puts a prefix before the reason of ready.
func because(prefix string, ready func() error) func() error {
	return func() error {
		if err := ready(); err != nil {
			return fmt.Errorf("%s: %w", prefix, err)
		}
		return nil
	}
}
