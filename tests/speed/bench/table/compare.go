package main

import (
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/kube-network-policies/tests/speed/bench/results"
)

// contender is a row of the table that compares ways to decide.
type contender struct{ what, way string }

var contenders = []contender{
	{"accept rule, no agent", accept},
	{"minimal loop that accepts all queued packets", floor},
	{"go-nfqueue callback loop that accepts all queued packets", callback},
	{"this agent, 11 policies", agent},
	{"this agent, 1,001 policies", agent1001},
	{"this agent, nothing remembered, 11 policies", asking},
	{"kube-network-policies v1.1.1, 11 policies", "/other/policies=11"},
	{"kube-network-policies v1.1.1, 1,001 policies", "/other/policies=1001"},
}

// columns are the compared figures, one of each measurement.
var columns = []struct {
	what, measurement, unit, show string
	scale                         float64
}{
	{"connect p50, µs", "Connect/unknown", "p50-ns", "%.0f", micro},
	{"p99, µs", "Connect/unknown", "p99-ns", "%.0f", micro},
	{"known class p50, µs", "Connect/known", "p50-ns", "%.0f", micro},
	{"p99, µs", "Connect/known", "p99-ns", "%.0f", micro},
	{"connects/s of 64 clients", "Clients/unknown", "connects/s", "%.0f", 1},
	{"CPU of the program for a connect, µs", "Clients/unknown", "decider-cpu-ns/connect", "%.0f", micro},
	{"flood delivered, thousand flows/s", "Flood/random", "delivered/s", "%.1f", kilo},
	{"lost flows of it", "Flood/random", "lost", "%.0f", 1},
}

// compare writes the medians of all rounds as Markdown. It leaves out what was not
// measured.
func compare(out io.Writer, r *results.Results) {
	heads, lines := []string{"way to decide"}, []string{"---"}
	for _, c := range columns {
		heads, lines = append(heads, c.what), append(lines, "---")
	}
	fmt.Fprintf(out, "\n| %s |\n| %s |\n", strings.Join(heads, " | "), strings.Join(lines, " | "))
	for _, w := range contenders {
		cells, measured := []string{w.what}, false
		for _, c := range columns {
			samples := r.Samples(c.measurement+w.way, c.unit)
			if len(samples) == 0 {
				cells = append(cells, "–")
				continue
			}
			measured = true
			cells = append(cells, fmt.Sprintf(c.show, samples.Median()*c.scale))
		}
		if measured {
			fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
		}
	}
}
