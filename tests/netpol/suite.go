package netpol

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// Summary counts results.
type Summary struct {
	Scenarios   int // played to their end, or failed
	Failed      int
	NoResult    int // of the failed ones, those that say nothing about the provider, see Result.Wrong
	Unsupported int // not played, because the backend lacks something
	Steps       int
	Cells       int // compared
	LeftOut     int // cells not observed, because the backend lacks something
	Took        time.Duration
	Slowest     time.Duration // duration of the slowest scenario

	settled map[Change][]time.Duration
	revoked map[Change]*Revocation
	control []time.Duration
}

// Control says how long it took until every table was right where nothing had changed and no policy was
// there. Times of changes mean something only if that is short.
type Control struct {
	Checks int
	Times
}

// mostControl is the longest control beside which times are reported.
const mostControl = 50 * time.Millisecond

// Busy returns why no times are reported, "" if they are.
func (c Control) Busy() string {
	if c.P99 <= mostControl {
		return ""
	}
	return fmt.Sprintf("the control's p99 is %s, more than %s: the machine is busy", milliseconds(c.P99), milliseconds(mostControl))
}

// String returns, for example, "control: right after 0 ms (p50), … without a change and without
// policies, checks: 25".
func (c Control) String() string {
	return fmt.Sprintf("control: right after %s without a change and without policies, checks: %d", c.Times, c.Checks)
}

// Control returns what the control of PlayAll was.
func (s *Summary) Control() Control { return Control{len(s.control), timesOf(s.control)} }

// addControl adds the times of steps that change nothing.
func (s *Summary) addControl(r Result) {
	for _, step := range r.Steps {
		if !anyDiffers(step.Comparisons) {
			s.control = append(s.control, step.Settled)
		}
	}
}

// The control has so many steps, before the first of so many scenarios.
const (
	controlSteps = 5
	controlEvery = 10
)

// playControl plays steps that change nothing, unless changes are effective at once.
func (r Runner) playControl(ctx context.Context) Result {
	support := r.Backend.Supports()
	if support.Immediate {
		return Result{}
	}
	return r.Play(ctx, Scenario{Name: "control", Model: Model{Nodes: min(2, support.Nodes)}, Steps: make([]Step, controlSteps)})
}

// Add counts one result.
func (s *Summary) Add(r Result) {
	if len(r.Steps) == 0 && r.Err == nil {
		s.Unsupported++
	} else {
		s.Scenarios++
	}
	if !r.OK() {
		s.Failed++
	}
	if !r.OK() && !r.Wrong() {
		s.NoResult++
	}
	for _, step := range r.Steps {
		if step.Change != "" && !anyDiffers(step.Comparisons) {
			if s.settled == nil {
				s.settled = make(map[Change][]time.Duration)
			}
			s.settled[step.Change] = append(s.settled[step.Change], step.Settled)
			s.addEstablished(step.Change, step.Established)
		}
	}
	s.Steps += len(r.Steps)
	s.Cells += r.Cells()
	s.LeftOut += r.LeftOut
	s.Took += r.Took
	s.Slowest = max(s.Slowest, r.Took)
}

// String returns the counts in one line.
func (s *Summary) String() string {
	text := fmt.Sprintf("%d scenarios, %d steps, %d cells in %.1f s (slowest scenario %.1f s): %d failed",
		s.Scenarios, s.Steps, s.Cells, s.Took.Seconds(), s.Slowest.Seconds(), s.Failed)
	if s.NoResult > 0 {
		text += fmt.Sprintf(", %d of them without a result", s.NoResult)
	}
	if s.Unsupported+s.LeftOut > 0 {
		text += fmt.Sprintf("; not supported by this backend: %d scenarios, %d cells in all", s.Unsupported, s.LeftOut)
	}
	return text
}

// CheckHealth reports an error that names what does not connect in a cluster without policies. A
// Runner that plays many scenarios calls it first, because all of them would fail.
func (r Runner) CheckHealth(ctx context.Context) error {
	support := r.Backend.Supports()
	model := Model{Nodes: min(2, support.Nodes)}
	if slices.Contains(support.Features, Services) {
		model.Vias = []Via{Direct, Service}
	}
	return r.Play(ctx, Scenario{Model: model}).Err
}

// PlayAll plays scenarios one after the other, and the control between them, passes each result of a
// scenario to report, and counts. It ends early only when ctx ends.
func (r Runner) PlayAll(ctx context.Context, scenarios []Scenario, report func(Result)) Summary {
	var summary Summary
	for i, scenario := range scenarios {
		if ctx.Err() != nil {
			break
		}
		if i%controlEvery == 0 {
			summary.addControl(r.playControl(ctx))
		}
		result := r.Play(ctx, scenario)
		summary.Add(result)
		report(result)
	}
	return summary
}

// Run plays each scenario as a subtest. It prints the tables that differ, or all of them
// with -v. A scenario that the backend does not support at all is skipped.
func (r Runner) Run(t *testing.T, scenarios ...Scenario) Summary {
	t.Helper()
	var summary Summary
	for _, scenario := range scenarios {
		t.Run(scenario.Name, func(t *testing.T) {
			result := r.Play(t.Context(), scenario)
			summary.Add(result)
			switch report := result.Report(Unicode, testing.Verbose()); {
			case !result.OK():
				t.Errorf("\n%s", report)
			case len(result.Steps) == 0:
				t.Skipf("not supported by this backend: %v", result.Unsupported)
			case report != "":
				t.Logf("\n%s", report)
			}
		})
	}
	t.Log(&summary)
	return summary
}
