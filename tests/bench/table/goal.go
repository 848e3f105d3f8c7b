package main

import (
	"fmt"
	"strings"

	"sigs.k8s.io/kube-network-policies/tests/bench/results"
)

// goal is a row of the table.
type goal struct {
	what, reach string
	checks      []check // all that have a bound must hold
}

// check is one number to reach.
type check struct {
	// figure returns the measured values, one for each round.
	figure func(*results.Results) results.Samples
	show   string  // format of a value
	unit   string  // behind the values, as it is shown
	scale  float64 // of a value before it is shown
	// holds is nil for a value that is shown without a goal, and not at all where it
	// was not measured.
	holds bound
}

// bound is what values must hold.
type bound func(results.Samples) bool

// evaluate returns the measured values, and whether they reach the goal.
func (g goal) evaluate(r *results.Results) (measured, reached string) {
	var cells []string
	for _, c := range g.checks {
		samples := c.figure(r)
		switch {
		case len(samples) == 0 && c.holds == nil:
			continue
		case len(samples) == 0:
			return "not measured", ""
		case c.holds == nil:
		case !c.holds(samples):
			reached = "**no**"
		case reached == "":
			reached = "yes"
		}
		cells = append(cells, c.cell(samples))
	}
	if len(cells) == 0 {
		return "not measured", ""
	}
	return strings.Join(cells, "; "), reached
}

// cell shows the median and, where there is one, the spread.
func (c check) cell(samples results.Samples) string {
	show := func(v float64) string { return fmt.Sprintf(c.show, v*c.scale) }
	cell := show(samples.Median())
	if low, high := samples.Spread(); show(low) != show(high) {
		cell += fmt.Sprintf(" (%s to %s)", show(low), show(high))
	}
	return cell + c.unit
}

// Figures.

// of is what was measured of name in unit.
func of(name, unit string) func(*results.Results) results.Samples {
	return func(r *results.Results) results.Samples { return r.Samples(name, unit) }
}

// ratio is one thing over another, round by round.
func ratio(name, over, unit string) func(*results.Results) results.Samples {
	return func(r *results.Results) results.Samples {
		return r.Samples(name, unit).Over(r.Samples(over, unit))
	}
}

// added is what one thing adds to a base, over what another adds, round by round.
func added(name, over, base, unit string) func(*results.Results) results.Samples {
	return func(r *results.Results) results.Samples {
		base := r.Samples(base, unit)
		return r.Samples(name, unit).Minus(base).Over(r.Samples(over, unit).Minus(base))
	}
}

// Bounds. Medians hold against noise; a count of what must not be is about all
// rounds.

func atMost(limit float64) bound {
	return func(s results.Samples) bool { return s.Median() <= limit }
}

func atLeast(limit float64) bound {
	return func(s results.Samples) bool { return s.Median() >= limit }
}

func never(s results.Samples) bool {
	_, high := s.Spread()
	return high == 0
}
