package results

import (
	"slices"
	"strings"
	"testing"
)

const text = `goos: linux
cpu: Some Processor @ 2 GHz
pkg: example.com/x
BenchmarkVerdict/policies=1-2         	  100	       500.5 ns/op	       0 allocs/op
BenchmarkLong
BenchmarkLong/a        	  7	       3 ns/op
BenchmarkVerdict/policies=1-2         	  100	       400 ns/op	       1 allocs/op
cpu: Some Processor @ 2 GHz
PASS
ok  	example.com/x	48.896s
`

func read(t *testing.T, text string) *Results {
	t.Helper()
	r, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestReadGoBenchmarks(t *testing.T) {
	r := read(t, text)
	for _, tc := range []struct {
		name, unit string
		want       Samples
	}{
		{"Verdict/policies=1", "ns/op", Samples{500.5, 400}},
		{"Verdict/policies=1", "allocs/op", Samples{0, 1}},
		{"Verdict/policies=1", "B/op", nil},
		{"Long/a", "ns/op", Samples{3}},
		{"Long", "ns/op", nil},
	} {
		t.Run(tc.name+" in "+tc.unit, func(t *testing.T) {
			if got := r.Samples(tc.name, tc.unit); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
	want := []Fact{{"goos", "linux"}, {"cpu", "Some Processor @ 2 GHz"}, {"pkg", "example.com/x"}}
	if !slices.Equal(r.Facts, want) {
		t.Errorf("facts %v, want %v", r.Facts, want)
	}
}

func TestLineRoundTrip(t *testing.T) {
	line := Line{Name: "UDPFlows/agent/policies=11/queues=2", Count: 100000, Values: []Value{{71000.5, "flows/s"}, {0, "lost"}}}
	r := read(t, Fact{"kernel", "6.1"}.String()+"\n"+line.String()+"\n")
	for _, v := range line.Values {
		if got := r.Samples(line.Name, v.Unit); !slices.Equal(got, Samples{v.Number}) {
			t.Errorf("%v of %q, want %v", got, line, v)
		}
	}

	if line.Value("flows/s") != 71000.5 || line.Value("lost") != 0 || line.Value("absent") != 0 {
		t.Errorf("values of %v: %v, %v", line, line.Value("flows/s"), line.Value("absent"))
	}
	if !slices.Equal(r.Facts, []Fact{{"kernel", "6.1"}}) {
		t.Errorf("facts %v", r.Facts)
	}
}

func TestReadReportsMalformedLines(t *testing.T) {
	for _, line := range []string{"BenchmarkX many 1 ns/op", "BenchmarkX 1 fast ns/op", "BenchmarkX 1 2"} {
		t.Run(line, func(t *testing.T) {
			if _, err := Read(strings.NewReader("goos: linux\n" + line)); err == nil || !strings.Contains(err.Error(), "line 2") {
				t.Errorf("got %v, want an error about line 2", err)
			}
		})
	}
}

func TestSamples(t *testing.T) {
	odd, even := Samples{3, 1, 2}, Samples{4, 1, 3, 2}
	if got := odd.Median(); got != 2 {
		t.Errorf("median %v, want 2", got)
	}
	if got := even.Median(); got != 2.5 {
		t.Errorf("median %v, want 2.5", got)
	}
	if low, high := even.Spread(); low != 1 || high != 4 {
		t.Errorf("spread %v to %v, want 1 to 4", low, high)
	}
	if got, want := even.Over(odd), (Samples{4. / 3, 1, 1.5}); !slices.Equal(got, want) {
		t.Errorf("ratios %v, want %v", got, want)
	}
	if got, want := odd.Minus(even), (Samples{-1, 0, -1}); !slices.Equal(got, want) {
		t.Errorf("differences %v, want %v", got, want)
	}
}
