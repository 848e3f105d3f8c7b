package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// plan is what is measured.
type plan struct {
	policies []int // of the agent, each with each number of queues
	queues   []int
	amounts  amounts
}

func (o options) plan() plan {
	if o.short {
		return plan{
			policies: []int{1, 11, 1001}, queues: []int{2},
			amounts: amounts{flows: 20000, sockets: 10000, paced: 20000, connect: 200 * time.Millisecond, clients: 300 * time.Millisecond},
		}
	}
	return plan{
		policies: []int{1, 11, 101, 1001, 10001}, queues: []int{1, 2},
		amounts: amounts{flows: 100000, sockets: 20000, paced: 60000, connect: 300 * time.Millisecond, clients: 600 * time.Millisecond},
	}
}

// way is a way to decide about packets.
type way struct {
	name  string // of its setup
	start func(ctx context.Context, s *setup) error
}

// ways returns all that are compared. Folders of agents are made in dir.
func (p plan) ways(o options, dir string) []way {
	ways := []way{
		{"none", func(context.Context, *setup) error { return nil }},
		{"accept", func(ctx context.Context, s *setup) error { return s.decideByRules(ctx) }},
		{"callback", func(ctx context.Context, s *setup) error { return s.decideByCallback(ctx, o.callback) }},
	}
	for _, queues := range p.queues {
		for _, policies := range p.policies {
			ways = append(ways, way{
				fmt.Sprintf("agent/policies=%d/queues=%d", policies, queues),
				func(ctx context.Context, s *setup) error { return s.decideByAgent(ctx, o.agent, dir, policies, queues) },
			})
		}
	}
	return ways
}

// setUp makes a setup for each way. The deciding processes start at the same time.
func setUp(ctx context.Context, ways []way) ([]*setup, error) {
	var setups []*setup
	processes, ctx := errgroup.WithContext(ctx)
	for _, w := range ways {
		s, err := newSetup(ctx, w.name)
		if err != nil {
			return setups, errors.Join(err, processes.Wait())
		}
		setups = append(setups, s)
		processes.Go(func() error {
			if err := w.start(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			return nil
		})
	}
	return setups, processes.Wait()
}
