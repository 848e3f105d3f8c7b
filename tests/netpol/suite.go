package netpol

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Summary counts results.
type Summary struct {
	Scenarios   int // played to their end or failed
	Failed      int
	Unsupported int // not played at all, because the backend lacks something
	Steps       int
	Cells       int // compared
	LeftOut     int // cells not observed, because the backend lacks something
	Took        time.Duration
	Slowest     time.Duration // of a scenario
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
	if s.Unsupported+s.LeftOut > 0 {
		text += fmt.Sprintf("; not supported by this backend: %d scenarios, %d cells in all", s.Unsupported, s.LeftOut)
	}
	return text
}

// PlayAll plays scenarios one after the other, gives each result to report, and
// counts. It ends early only when ctx ends.
func (r Runner) PlayAll(ctx context.Context, scenarios []Scenario, report func(Result)) Summary {
	var summary Summary
	for _, scenario := range scenarios {
		if ctx.Err() != nil {
			break
		}
		result := r.Play(ctx, scenario)
		summary.Add(result)
		report(result)
	}
	return summary
}

// Run plays each scenario as a subtest. It prints the tables that differ, with -v all of
// them. A scenario that the backend does not support at all is skipped.
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
