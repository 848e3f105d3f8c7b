package main

import (
	"math"
	"slices"
	"sync"
	"time"
)

// A report is what the prober prints.
type report struct {
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	Targets []result  `json:"targets"`
}

// A result is that of one target.
type result struct {
	Target    string `json:"target"`
	Expected  string `json:"expected"` // allowed or denied
	Attempts  int    `json:"attempts"`
	Succeeded int    `json:"succeeded"`
	Failed    int    `json:"failed"`
	// Failures are the failed attempts by kind, and the first error.
	Failures   map[string]int `json:"failures,omitempty"`
	FirstError string         `json:"firstError,omitempty"`
	// First is the latency of the first attempt, if that succeeded.
	First *float64 `json:"firstMilliseconds,omitempty"`
	// Latency is that of the attempts that succeeded.
	Latency *latency `json:"latencyMilliseconds,omitempty"`
	// LongestGap is the longest time without success, Gaps the longest ones.
	LongestGap float64 `json:"longestGapMilliseconds"`
	Gaps       []gap   `json:"gaps,omitempty"`
	// Leaks are the successes of a denied target, the first and the last with the
	// time at which it was begun.
	Leaks     int        `json:"leaks"`
	FirstLeak *time.Time `json:"firstLeak,omitempty"`
	LastLeak  *time.Time `json:"lastLeak,omitempty"`
}

type latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// A gap is a time without success.
type gap struct {
	Start        time.Time `json:"start"`
	Milliseconds float64   `json:"milliseconds"`
}

const (
	// mostGaps limits the gaps of a result. The longest are reported.
	mostGaps = 10
	// gapIntervals is how many intervals without success are worth reporting as a gap.
	gapIntervals = 10
)

// asExpected reports whether there was no leak, no gap longer than maxGap, unless it is
// 0, and not more than maxFailed failures, unless it is negative. An allowed target
// that was never reached is not as expected.
func (r report) asExpected(maxGap time.Duration, maxFailed int) bool {
	return !slices.ContainsFunc(r.Targets, func(t result) bool {
		if t.Expected == "denied" {
			return t.Leaks > 0
		}
		return t.Succeeded == 0 || maxGap > 0 && t.LongestGap > milliseconds(maxGap) || maxFailed >= 0 && t.Failed > maxFailed
	})
}

// A record collects what happens to a target.
type record struct {
	mu         sync.Mutex
	begun      time.Time
	ended      time.Time // of the time in which attempts were begun
	attempts   int
	first      time.Time // when the first attempt was begun
	successes  []success
	failures   map[string]int
	firstError string
}

// A success has the times at which the attempt was begun and had succeeded.
type success struct{ start, end time.Time }

func newRecord(begun time.Time) *record {
	return &record{begun: begun, failures: make(map[string]int)}
}

func (r *record) add(start, end time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.attempts == 0 || start.Before(r.first) {
		r.first = start
	}
	r.attempts++
	if err == nil {
		r.successes = append(r.successes, success{start, end})
		return
	}
	r.failures[kindOf(err)]++
	if r.firstError == "" {
		r.firstError = err.Error()
	}
}

func (r *record) end(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = at
}

func (r *record) result(t target, interval time.Duration) result {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := result{
		Target: t.name, Expected: "allowed",
		Attempts: r.attempts, Succeeded: len(r.successes), Failed: r.attempts - len(r.successes),
		Failures: r.failures, FirstError: r.firstError, Latency: latencyOf(r.successes),
	}
	if i := slices.IndexFunc(r.successes, func(s success) bool { return s.start.Equal(r.first) }); i >= 0 {
		first := milliseconds(r.successes[i].end.Sub(r.first))
		out.First = &first
	}
	if t.denied {
		out.Expected = "denied"
		out.Leaks = len(r.successes)
		if out.Leaks > 0 {
			byStart := slices.SortedFunc(slices.Values(r.successes), func(a, b success) int { return a.start.Compare(b.start) })
			out.FirstLeak, out.LastLeak = &byStart[0].start, &byStart[len(byStart)-1].start
		}
		return out
	}
	gaps := r.gaps()
	out.LongestGap = gaps[0].Milliseconds
	gaps = gaps[:min(len(gaps), mostGaps)]
	out.Gaps = slices.DeleteFunc(gaps, func(g gap) bool { return g.Milliseconds < milliseconds(gapIntervals*interval) })
	return out
}

// gaps returns the times between two successes, the longest first. The begin and the
// end of the probing count as successes. No attempt is begun after the end: what succeeds
// later is no gap.
func (r *record) gaps() []gap {
	ends := []time.Time{r.begun}
	for _, s := range r.successes {
		if s.end.Before(r.ended) {
			ends = append(ends, s.end)
		}
	}
	slices.SortFunc(ends, time.Time.Compare)
	ends = append(ends, r.ended)
	gaps := []gap{{Start: r.begun}}
	for i, end := range ends[1:] {
		gaps = append(gaps, gap{Start: ends[i], Milliseconds: milliseconds(end.Sub(ends[i]))})
	}
	slices.SortStableFunc(gaps, func(a, b gap) int {
		switch {
		case a.Milliseconds > b.Milliseconds:
			return -1
		case a.Milliseconds < b.Milliseconds:
			return 1
		}
		return 0
	})
	return gaps
}

func latencyOf(successes []success) *latency {
	if len(successes) == 0 {
		return nil
	}
	took := make([]time.Duration, len(successes))
	for i, s := range successes {
		took[i] = s.end.Sub(s.start)
	}
	slices.Sort(took)
	// The smallest latency that this share of the attempts did not exceed.
	quantile := func(q float64) float64 {
		return milliseconds(took[max(0, int(math.Ceil(q*float64(len(took))))-1)])
	}
	return &latency{P50: quantile(0.5), P99: quantile(0.99), Max: quantile(1)}
}

// milliseconds has three places behind the point.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
