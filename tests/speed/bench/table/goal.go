package main

import (
	"fmt"
	"strings"

	"sigs.k8s.io/kube-network-policies/tests/speed/bench/results"
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
	unit   string  // shown after the values
	scale  float64 // of a value before it is shown
	// holds is nil for a value that is shown without a goal. Such a value is omitted if it was
	// not measured.
	holds bound
}

// bound is a condition on values.
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

// cell shows the median and, if there are several values, the spread.
func (c check) cell(samples results.Samples) string {
	show := func(v float64) string { return fmt.Sprintf(c.show, v*c.scale) }
	cell := show(samples.Median())
	if low, high := samples.Spread(); show(low) != show(high) {
		cell += fmt.Sprintf(" (%s to %s)", show(low), show(high))
	}
	return cell + c.unit
}

// Figures.

// samplesOf returns a figure: what was measured of name in unit.
func samplesOf(name, unit string) func(*results.Results) results.Samples {
	return func(r *results.Results) results.Samples { return r.Samples(name, unit) }
}

// ratio returns a figure: one measurement over another, round by round.
func ratio(name, denominator, unit string) func(*results.Results) results.Samples {
	return func(r *results.Results) results.Samples {
		return r.Samples(name, unit).Over(r.Samples(denominator, unit))
	}
}

// added returns a figure: what one measurement adds to a base over what another adds, round
// by round.
func added(name, denominator, base, unit string) func(*results.Results) results.Samples {
	return func(r *results.Results) results.Samples {
		base := r.Samples(base, unit)
		return r.Samples(name, unit).Minus(base).Over(r.Samples(denominator, unit).Minus(base))
	}
}

// Bounds. Medians are robust against noise. Counts of what must never happen include all
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
