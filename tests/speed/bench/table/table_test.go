package main

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/speed/bench/results"
)

// rows returns a function that finds the row for results by the beginning of its first
// cell.
func rows(t *testing.T, text string) func(what string) string {
	t.Helper()
	r, err := results.Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	write(&out, r)
	return func(what string) string {
		for line := range strings.Lines(out.String()) {
			if strings.HasPrefix(line, "| "+what) {
				return strings.TrimSpace(line)
			}
		}
		t.Fatalf("no row %q in\n%s", what, &out)
		return ""
	}
}

func TestRows(t *testing.T) {
	for _, tc := range []struct{ name, results, row, want string }{
		{"no results", "", "one verdict", "| not measured |  |"},
		{"fast enough, no allocations", "BenchmarkVerdict/policies=1/pods=1000-2 9 450 ns/op 0 allocs/op", "one verdict", "| 450 ns; 0 allocations | yes |"},
		{"too slow", "BenchmarkVerdict/policies=1/pods=1000-2 9 501 ns/op 0 allocs/op", "one verdict", "| 501 ns; 0 allocations | **no** |"},
		{"an allocation", "BenchmarkVerdict/policies=1/pods=1000-2 9 450 ns/op 1 allocs/op", "one verdict", "| 450 ns; 1 allocations | **no** |"},
		{"low latency", "BenchmarkConnect/unknown/accept 9 70 p50-ns\nBenchmarkConnect/unknown/callback 9 270 p50-ns\nBenchmarkConnect/unknown/agent/policies=11 9 170 p50-ns", "TCP connect, median", "| 0.50 | yes |"},
		{"high latency", "BenchmarkConnect/unknown/accept 9 70 p50-ns\nBenchmarkConnect/unknown/callback 9 170 p50-ns\nBenchmarkConnect/unknown/agent/policies=11 9 140 p50-ns", "TCP connect, median", "| 0.70 | **no** |"},
		{"no callback to compare with", "BenchmarkConnect/unknown/accept 9 70 p50-ns\nBenchmarkConnect/unknown/agent/policies=11 9 140 p50-ns", "TCP connect, median", "| not measured |  |"},
		{"one percentile is too high", "BenchmarkConnect/known/accept 9 50000 p50-ns 100000 p99-ns\nBenchmarkConnect/known/agent/policies=11 9 55000 p50-ns 140000 p99-ns", "TCP connect, one at a time, known", "| 1.10 p50; 1.40 p99; 50 µs p50 of the rule; 100 µs p99 of the rule | **no** |"},
		{"and of an agent that remembers nothing", "BenchmarkConnect/known/accept 9 50000 p50-ns 100000 p99-ns\nBenchmarkConnect/known/agent/policies=11 9 55000 p50-ns 130000 p99-ns\nBenchmarkConnect/known/asking/policies=11 9 100000 p50-ns", "TCP connect, one at a time, known", "; 2.00 p50 where nothing is remembered | yes |"},
		{"no goal", "BenchmarkConnect/unknown/accept 9 50000 p50-ns 100000 p99-ns\nBenchmarkConnect/unknown/agent/policies=11 9 100000 p50-ns 300000 p99-ns", "the same, unknown classes", "| no goal | 2.00 p50; 3.00 p99; 50 µs p50 of the rule; 100 µs p99 of the rule |  |"},
		{"the agent is not asked", "BenchmarkClients/known/agent/policies=11 9 3 decider-cpu-ns/connect", "the agent's CPU time", "| 0.0 µs | yes |"},
		{"the agent is asked", "BenchmarkClients/known/agent/policies=11 9 89000 decider-cpu-ns/connect", "the agent's CPU time", "| 89.0 µs | **no** |"},
		{"many peers are slow", "BenchmarkPeers/policies=10000/peers=1 9 500 ns/op\nBenchmarkPeers/policies=10000/peers=100000 9 1500 ns/op", "a verdict with 100,000 peers", "| 3.0 times | **no** |"},
		{"the worst of a change", "BenchmarkPolicyChange/policies=10000/pods=100000 9 1000000 p50-ns 2000000 p99-ns 3000000 max-ns", "a policy's change", "| 1.0 ms p50; 2.0 ms p99; 3.0 ms at most | yes |"},
		{"high rate", "BenchmarkClients/unknown/agent/policies=1 9 100 connects/s\nBenchmarkClients/unknown/agent/policies=1001 9 90 connects/s", "connects/s, 64 clients, unknown", "| 0.90 | yes |"},
		{"low rate", "BenchmarkClients/unknown/agent/policies=1 9 100 connects/s\nBenchmarkClients/unknown/agent/policies=1001 9 89 connects/s", "connects/s, 64 clients, unknown", "| 0.89 | **no** |"},
		{"beside many connections", "BenchmarkCrowd/some/peers=one/family=0/entries=0 1 100000000 ns\nBenchmarkCrowd/some/peers=many/family=0/entries=250000 1 150000000 ns\nBenchmarkCrowd/some/peers=one/family=1/entries=0 1 100000000 ns\nBenchmarkCrowd/some/peers=many/family=1/entries=250000 1 250000000 ns", "the same beside 250,000", "| 50 ms; 150 ms | **no** |"},
		{"slow start", "BenchmarkStart/policies=10000/pods=100000 1 2500000000 ns/op", "start", "| 2.50 s | **no** |"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := rows(t, tc.results)(tc.row); !strings.HasSuffix(got, tc.want) {
				t.Errorf("%s\n%s\nwant %s", tc.results, got, tc.want)
			}
		})
	}
}

func TestGoalsUseMediansAndAllLosses(t *testing.T) {
	flood := func(rate string) string {
		return "BenchmarkFlood/random/floor 9 100000 sent/s 100000 delivered/s 0 lost\n" +
			"BenchmarkFlood/random/agent/policies=11 9 100000 sent/s " + rate + " delivered/s 0 lost\n"
	}
	paced := func(lost string) string {
		return "BenchmarkPaced/random/agent/policies=11 9 60000 sent/s " + lost + " lost\n" +
			"BenchmarkBurst/random/agent/policies=11 9 0 lost\n"
	}
	for _, tc := range []struct{ name, results, row, want string }{
		{"median above the goal", flood("80000") + flood("95000") + flood("92000"), "the same, each flow", "| 0.92 (0.80 to 0.95); 100k/s sent to floor; 100k/s delivered; 0 lost; 100k/s sent to agent; 92 (80 to 95)k/s delivered; 0 lost | yes |"},
		{"median below the goal", flood("80000") + flood("95000") + flood("88000"), "the same, each flow", " lost | **no** |"},
		{"no losses", paced("0") + paced("0"), "new UDP flows of unknown", "| 0 lost; 60000/s sent; 0 lost of a burst | yes |"},
		{"too few were sent", strings.ReplaceAll(paced("0"), "60000", "51000"), "new UDP flows of unknown", "| 0 lost; 51000/s sent; 0 lost of a burst | **no** |"},
		{"losses in one round", paced("0") + paced("7") + paced("0"), "new UDP flows of unknown", "| 0 (0 to 7) lost; 60000/s sent; 0 lost of a burst | **no** |"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := rows(t, tc.results)(tc.row); !strings.HasSuffix(got, tc.want) {
				t.Errorf("%s\nwant %s", got, tc.want)
			}
		})
	}
}

// Ways that were measured are compared by medians. The others have no row.
func TestComparison(t *testing.T) {
	var out strings.Builder
	r, err := results.Read(strings.NewReader("BenchmarkConnect/unknown/accept 9 50000 p50-ns 90000 p99-ns\nBenchmarkConnect/unknown/accept 9 60000 p50-ns 90000 p99-ns\n" +
		"BenchmarkFlood/random/other/policies=11 9 7100 delivered/s 52000 lost\n"))
	if err != nil {
		t.Fatal(err)
	}
	compare(&out, r)

	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{
		"| accept rule, no agent | 55 | 90 | – | – | – | – | – | – |",
		"| kube-network-policies v1.1.1, 11 policies | – | – | – | – | – | – | 7.1 | 52000 |",
	}
	if got := lines[2:]; !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestTableDescribesTheMachine(t *testing.T) {
	var out strings.Builder
	r, err := results.Read(strings.NewReader("cpu: Some Processor\n"))
	if err != nil {
		t.Fatal(err)
	}
	write(&out, r)
	if !strings.Contains(out.String(), "cpu: Some Processor") {
		t.Errorf("no processor in\n%s", &out)
	}
}
