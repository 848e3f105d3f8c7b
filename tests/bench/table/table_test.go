package main

import (
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/bench/results"
)

// rows returns the rows for results, by the beginning of their first cell.
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
		{"low latency", "BenchmarkTCPConnect/accept 9 70 p50-ns\nBenchmarkTCPConnect/callback 9 270 p50-ns\nBenchmarkTCPConnect/agent/policies=11/queues=2 9 170 p50-ns", "TCP connect", "| 0.50 | yes |"},
		{"high latency", "BenchmarkTCPConnect/accept 9 70 p50-ns\nBenchmarkTCPConnect/callback 9 170 p50-ns\nBenchmarkTCPConnect/agent/policies=11/queues=2 9 140 p50-ns", "TCP connect", "| 0.70 | **no** |"},
		{"no callback to compare with", "BenchmarkTCPConnect/accept 9 70 p50-ns\nBenchmarkTCPConnect/agent/policies=11/queues=2 9 140 p50-ns", "TCP connect", "| not measured |  |"},
		{"high rate", "BenchmarkTCPClients/agent/policies=1/queues=2 9 100 connects/s\nBenchmarkTCPClients/agent/policies=1001/queues=2 9 90 connects/s", "connects/s", "| 0.90 | yes |"},
		{"low rate", "BenchmarkTCPClients/agent/policies=1/queues=2 9 100 connects/s\nBenchmarkTCPClients/agent/policies=1001/queues=2 9 89 connects/s", "connects/s", "| 0.89 | **no** |"},
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
	flows := func(rate, lost string) string {
		return "BenchmarkUDPFlows/accept 9 100 flows/s\n" +
			"BenchmarkUDPFlows/agent/policies=11/queues=2 9 " + rate + " flows/s\n" +
			"BenchmarkUDPSockets/accept 9 10 flows/s\n" +
			"BenchmarkUDPSockets/agent/policies=11/queues=2 9 10 flows/s\n" +
			"BenchmarkUDPPaced/agent/policies=11/queues=2 9 60000 sent/s " + lost + " lost\n" +
			"BenchmarkUDPBurst/agent/policies=11/queues=2 9 0 lost\n"
	}
	for _, tc := range []struct{ name, results, want string }{
		{"median above the goal", flows("80", "0") + flows("95", "0") + flows("92", "0"), "| 0.92 (0.80 to 0.95); 1.00 with a socket for each flow; 0 lost; 60000/s sent; 0 lost of a burst | yes |"},
		{"median below the goal", flows("80", "0") + flows("95", "0") + flows("88", "0"), "| 0.88 (0.80 to 0.95); 1.00 with a socket for each flow; 0 lost; 60000/s sent; 0 lost of a burst | **no** |"},
		{"losses in one round", flows("95", "0") + flows("95", "7") + flows("95", "0"), "| 0.95; 1.00 with a socket for each flow; 0 (0 to 7) lost; 60000/s sent; 0 lost of a burst | **no** |"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := rows(t, tc.results)("new UDP flows"); !strings.HasSuffix(got, tc.want) {
				t.Errorf("%s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestTableDescribesTheMachine(t *testing.T) {
	var out strings.Builder
	r, err := results.Read(strings.NewReader("cpu: Some Processor\n"))
	if err != nil {
		t.Fatal(err)
	}
	if write(&out, r); !strings.Contains(out.String(), "cpu: Some Processor") {
		t.Errorf("no processor in\n%s", &out)
	}
}
