package netpol

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// cell is a cell of one of the tables.
type cell struct {
	table int
	pair  Pair
}

// observation is what observe has seen.
type observation struct {
	comparisons []Comparison
	rounds      int
	settled     time.Time // when the last round began
}

// observe tries every cell until it is as expected, but not longer than changes may take to
// settle. A cell that is as expected is not tried again. Before any other is reported, it
// was tried with the longest timeout, however long all attempts took together. Attempts that a backend
// cannot make are repeated, too.
func (p *play) observe(ctx context.Context, want *Reachability) (observation, error) {
	settled, cancel := context.WithTimeout(ctx, cmp.Or(p.runner.Settle, defaultSettle))
	defer cancel()
	seen := observation{comparisons: newComparisons(want)}
	silence := cmp.Or(p.runner.Silence, defaultSilence)
	open := allCells(seen.comparisons)
	for expected := silence; ; expected = min(2*expected, patience*silence) {
		seen.rounds++
		seen.settled = time.Now()
		err := p.try(ctx, seen.comparisons, open, expected)
		open = slices.DeleteFunc(open, func(c cell) bool { return seen.comparisons[c.table].agrees(c.pair) })
		timedOut := settled.Err() != nil && expected == patience*silence
		ended := timedOut || p.runner.Backend.Supports().Immediate
		switch {
		case ctx.Err() != nil:
			return observation{}, ctx.Err()
		case ended && err != nil: // what earlier attempts have shown may be over
			return observation{}, err
		case ended || len(open) == 0:
			return seen, nil
		}
		pause(settled, retryInterval)
	}
}

// look tries every cell once, with the longest timeout.
func (p *play) look(ctx context.Context, want *Reachability) ([]Comparison, error) {
	comparisons := newComparisons(want)
	return comparisons, p.try(ctx, comparisons, allCells(comparisons), patience*cmp.Or(p.runner.Silence, defaultSilence))
}

// retryInterval is the time between two attempts of a cell.
const retryInterval = 20 * time.Millisecond

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// newComparisons returns the expected tables without any observation.
func newComparisons(want *Reachability) []Comparison {
	var comparisons []Comparison
	for _, t := range want.traffic {
		table := want.tables[t]
		got := NewTruthTable(table.pods, false)
		for i := range got.cells {
			got.cells[i] = Unobservable
		}
		comparisons = append(comparisons, Comparison{Traffic: t, Want: table, Got: got})
	}
	return comparisons
}

func (c Comparison) agrees(pair Pair) bool {
	return c.Want.Outcome(pair.From, pair.To) == c.Got.Outcome(pair.From, pair.To)
}

// allCells returns every cell of the tables.
func allCells(comparisons []Comparison) []cell {
	var cells []cell
	for i, c := range comparisons {
		for _, from := range c.Want.pods {
			for _, to := range c.Want.pods {
				cells = append(cells, cell{i, Pair{from, to}})
			}
		}
	}
	return cells
}

// try makes one attempt for each cell and stores the outcomes. expected is the timeout of
// attempts that should be answered.
func (p *play) try(ctx context.Context, comparisons []Comparison, cells []cell, expected time.Duration) error {
	connections := make([]Connection, len(cells))
	for i, c := range cells {
		table := comparisons[c.table]
		connections[i] = Connection{From: c.pair.From, To: c.pair.To, Traffic: table.Traffic, Silence: expected}
		if !table.Want.Get(c.pair.From, c.pair.To) {
			connections[i].Silence = cmp.Or(p.runner.Silence, defaultSilence)
		}
	}
	outcomes, err := p.runner.Backend.Probe(ctx, connections)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if len(outcomes) != len(connections) {
		return fmt.Errorf("probe: %d outcomes of %d connections", len(outcomes), len(connections))
	}
	silent := slices.Contains(p.runner.Backend.Supports().Features, SilentDrops)
	for i, c := range cells {
		outcome := outcomes[i]
		if outcome == Refused && !silent && !comparisons[c.table].Want.Get(c.pair.From, c.pair.To) {
			outcome = TimedOut // providers may refuse what they deny
		}
		comparisons[c.table].Got.SetOutcome(c.pair.From, c.pair.To, outcome)
	}
	return nil
}
