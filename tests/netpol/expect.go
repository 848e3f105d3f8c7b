package netpol

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// Expectation is a connection and whether policies allow it. The connection's Silence is
// ignored.
type Expectation struct {
	Connection
	Allowed bool
}

// Expect checks that every connection can be made without the state's policies, applies
// them, waits until they are effective everywhere (Settle), and tries every connection
// again. It returns the outcomes in the order of expected. A refused connection that must
// be denied is returned as TimedOut, unless the backend must drop silently.
func (r Runner) Expect(ctx context.Context, state *State, expected []Expectation) ([]Outcome, error) {
	for _, kind := range state.kinds() {
		if !slices.Contains(r.Backend.Supports().Features, kind) {
			return nil, fmt.Errorf("the policies need %s, which this cluster does not have", kind)
		}
	}
	state = state.Clone()
	policies := state.AllPolicies()
	state.withoutPolicies()
	if err := r.Backend.Apply(ctx, state); err != nil {
		return nil, fmt.Errorf("apply without policies: %w", err)
	}
	connects := slices.Clone(expected)
	for i := range connects {
		connects[i].Allowed = true
	}
	outcomes, err := r.attempt(ctx, connects)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(outcomes, func(o Outcome) bool { return o != Connected }); i >= 0 {
		return nil, fmt.Errorf("%w: %v: %v", errNotObservable, expected[i].Connection, outcomes[i])
	}
	state.Apply(policies...)
	if err := r.Backend.Apply(ctx, state); err != nil {
		return nil, fmt.Errorf("apply the policies: %w", err)
	}
	if !r.Backend.Supports().Immediate {
		pause(ctx, cmp.Or(r.Settle, defaultSettle))
	}
	return r.attempt(ctx, expected)
}

// attempt tries every connection. One that should be made and is not is tried again with
// more time for the answer.
func (r Runner) attempt(ctx context.Context, expected []Expectation) ([]Outcome, error) {
	silence := cmp.Or(r.Silence, defaultSilence)
	refuses := !slices.Contains(r.Backend.Supports().Features, SilentDrops)
	outcomes := make([]Outcome, len(expected))
	open := make([]int, len(expected)) // indices
	for i := range open {
		open[i] = i
	}
	for wait := silence; len(open) > 0 && ctx.Err() == nil; wait = min(2*wait, patience*silence) {
		connections := make([]Connection, len(open))
		for i, e := range open {
			connections[i] = expected[e].Connection
			connections[i].Silence = silence
			if expected[e].Allowed {
				connections[i].Silence = wait
			}
		}
		tried, err := r.Backend.Probe(ctx, connections)
		if err != nil {
			return nil, fmt.Errorf("probe: %w", err)
		}
		if len(tried) != len(open) {
			return nil, fmt.Errorf("probe: %d outcomes of %d connections", len(tried), len(open))
		}
		for i, e := range open {
			outcomes[e] = tried[i]
			if tried[i] == Refused && !expected[e].Allowed && refuses {
				outcomes[e] = TimedOut // providers may refuse what they deny
			}
		}
		if wait == patience*silence {
			break
		}
		open = slices.DeleteFunc(open, func(e int) bool {
			if expected[e].Allowed {
				return outcomes[e] == Connected
			}
			return outcomes[e] != Unobservable
		})
	}
	return outcomes, ctx.Err()
}
