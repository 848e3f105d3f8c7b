package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// plan is what is measured.
type plan struct {
	policies []int // of agents; those with mainPolicies get all measurements
	amounts  amounts
}

// mainPolicies is the number of policies of the agents that get all measurements.
const mainPolicies = 11

func (o options) plan() plan {
	if o.short {
		return plan{
			policies: []int{mainPolicies, 1001},
			amounts:  amounts{flows: 20000, connect: 200 * time.Millisecond, bystander: 300 * time.Millisecond, clients: 300 * time.Millisecond},
		}
	}
	return plan{
		policies: []int{1, mainPolicies, 101, 1001, 10001},
		amounts:  amounts{flows: 60000, connect: 400 * time.Millisecond, bystander: 2 * time.Second, clients: 600 * time.Millisecond},
	}
}

// way is a way to decide about packets.
type way struct {
	name  string // of its setup
	start func(ctx context.Context, s *setup) error

	brief     bool // only brief measurements
	denies    bool // does not accept everything
	remembers bool // the kernel may decide by remembered verdicts
}

// variant is an agent with flags that change how it decides.
type variant struct {
	name, flag, value string
}

// variants are measured if the agent has their flag. The first one is always measured.
var variants = []variant{
	{"agent", "remember-verdicts", "30s"},
	{"asking", "remember-verdicts", "0"},
}

// supported returns the variants whose flags the help of the agent lists, with these flags.
func supported(help string) (names []string, args map[string][]string) {
	args = make(map[string][]string)
	for i, v := range variants {
		has := strings.Contains(help, "--"+v.flag)
		if has {
			args[v.name] = []string{"--" + v.flag + "=" + v.value}
		}
		if has || i == 0 {
			names = append(names, v.name)
		}
	}
	return names, args
}

// ways returns everything that is compared. The agents' folders are created in dir.
func (p plan) ways(ctx context.Context, o options, dir string) ([]way, error) {
	help, err := exec.CommandContext(ctx, o.agent, "--help").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s --help: %w", o.agent, err)
	}
	ways := []way{
		{name: "accept", denies: true, start: func(ctx context.Context, s *setup) error { return s.decideByRules(ctx) }},
		{name: "floor", start: func(ctx context.Context, s *setup) error { return s.decideByLoop(ctx, runtime.NumCPU(), o.floor) }},
	}
	names, args := supported(string(help))
	for _, policies := range p.policies {
		for _, name := range names {
			ways = append(ways, way{
				name:  fmt.Sprintf("%s/policies=%d", name, policies),
				brief: policies != mainPolicies, denies: true,
				remembers: args[name] != nil && name != "asking",
				start: func(ctx context.Context, s *setup) error {
					return s.decideByAgent(ctx, o.agent, dir, policies, args[name])
				},
			})
		}
	}
	ways = append(ways, way{name: "callback", brief: true, start: func(ctx context.Context, s *setup) error { return s.decideByLoop(ctx, 1, o.callback) }})
	if o.other == "" {
		return ways, nil
	}
	for _, policies := range []int{mainPolicies, 1001} {
		ways = append(ways, way{
			name: fmt.Sprintf("other/policies=%d", policies), brief: true,
			start: func(ctx context.Context, s *setup) error { return s.decideByOther(ctx, o.other, dir, policies) },
		})
	}
	return ways, nil
}

// setUp creates a setup for each way that this machine supports. The deciding processes
// start at the same time.
func setUp(ctx context.Context, ways []way) ([]*setup, error) {
	var setups []*setup
	processes, ctx := errgroup.WithContext(ctx)
	for _, w := range ways {
		s, err := newSetup(ctx, w)
		if err != nil {
			return setups, errors.Join(err, processes.Wait())
		}
		setups = append(setups, s)
		processes.Go(func() error {
			err := w.start(ctx, s)
			s.unsupported = errors.Is(err, errors.ErrUnsupported)
			if s.unsupported {
				fmt.Fprintf(os.Stderr, "bench: %s is left out: %v\n", s.name, err)
				return nil
			}
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			return nil
		})
	}
	return setups, processes.Wait()
}
