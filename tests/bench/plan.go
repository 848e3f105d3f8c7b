package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// plan says what is measured.
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

// way is a way to judge.
type way struct {
	name  string // of its setup
	judge func(ctx context.Context, s *setup) error
}

// ways returns all that are compared. Folders of agents are made in dir.
func (p plan) ways(o options, dir string) []way {
	ways := []way{
		{"none", func(context.Context, *setup) error { return nil }},
		{"accept", func(ctx context.Context, s *setup) error { return s.judgedByRules(ctx) }},
		{"callback", func(ctx context.Context, s *setup) error { return s.judgedByCallback(ctx, o.callback) }},
	}
	for _, queues := range p.queues {
		for _, policies := range p.policies {
			ways = append(ways, way{
				fmt.Sprintf("agent/policies=%d/queues=%d", policies, queues),
				func(ctx context.Context, s *setup) error { return s.judgedByAgent(ctx, o.agent, dir, policies, queues) },
			})
		}
	}
	return ways
}

// setUp makes a setup for each way. What judges starts beside the others.
func setUp(ctx context.Context, ways []way) ([]*setup, error) {
	var setups []*setup
	judges, ctx := errgroup.WithContext(ctx)
	for _, w := range ways {
		s, err := newSetup(ctx, w.name)
		if err != nil {
			return setups, errors.Join(err, judges.Wait())
		}
		setups = append(setups, s)
		judges.Go(func() error {
			if err := w.judge(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			return nil
		})
	}
	return setups, judges.Wait()
}
