package packets

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// collected returns what l exports at a time.
func collected(t *testing.T, l *latency, now time.Time) (histogram *dto.Histogram, summary *dto.Summary) {
	t.Helper()
	ch := make(chan prometheus.Metric, 2)
	l.collect(ch, processTime, processDuration, now, "TCP", "IPv4")
	var h, s dto.Metric
	if err := (<-ch).Write(&h); err != nil {
		t.Fatal(err)
	}
	if err := (<-ch).Write(&s); err != nil {
		t.Fatal(err)
	}
	return h.Histogram, s.Summary
}

func TestLatencyIsThatOfALibraryHistogram(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	var l latency
	want := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "h", Buckets: histogramBounds})
	for _, d := range append([]time.Duration{0, 1, 499, 500, 501, time.Microsecond, 100 * time.Millisecond, time.Second, time.Hour}, random(r, 5000)...) {
		l.observe(d)
		want.Observe(float64(d) / float64(time.Microsecond))
	}
	var m dto.Metric
	if err := want.Write(&m); err != nil {
		t.Fatal(err)
	}
	got, _ := collected(t, &l, time.Now())
	if *got.SampleCount != *m.Histogram.SampleCount || math.Abs(*got.SampleSum-*m.Histogram.SampleSum) > 1e-6**got.SampleSum {
		t.Errorf("count %d, sum %v, want %d, %v", *got.SampleCount, *got.SampleSum, *m.Histogram.SampleCount, *m.Histogram.SampleSum)
	}
	for i, b := range got.Bucket {
		if w := m.Histogram.Bucket[i]; *b.UpperBound != *w.UpperBound || *b.CumulativeCount != *w.CumulativeCount {
			t.Errorf("%v up to %v us, want %v up to %v", *b.CumulativeCount, *b.UpperBound, *w.CumulativeCount, *w.UpperBound)
		}
	}
}

// random durations of all lengths.
func random(r *rand.Rand, n int) []time.Duration {
	all := make([]time.Duration, n)
	for i := range all {
		all[i] = time.Duration(math.Pow(10, 1+8.5*r.Float64()))
	}
	return all
}

func TestQuantilesAreAtMostAThirdTooLong(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	var l latency
	all := random(r, 2000)
	all = slices.DeleteFunc(all, func(d time.Duration) bool { return d < 100 || d > time.Second })
	for _, d := range all {
		l.observe(d)
	}
	slices.Sort(all)
	_, s := collected(t, &l, time.Now())
	for _, q := range s.Quantile {
		exact := float64(all[int(math.Ceil(*q.Quantile*float64(len(all))))-1]) / float64(time.Microsecond)
		if *q.Value < exact || *q.Value > exact*4/3+1e-9 {
			t.Errorf("quantile %v is %v us, exactly %v", *q.Quantile, *q.Value, exact)
		}
	}
}

func TestQuantilesForgetTheCountDoesNot(t *testing.T) {
	var l latency
	start := time.Now()
	for range 100 {
		l.observe(time.Millisecond)
	}
	for _, minute := range []time.Duration{0, 5} {
		if _, s := collected(t, &l, start.Add(minute*time.Minute)); *s.Quantile[0].Value != 1000 {
			t.Errorf("minute %d: median %v, want 1000", minute, *s.Quantile[0].Value)
		}
	}
	collected(t, &l, start.Add(10*time.Minute))
	l.observe(time.Microsecond)
	_, s := collected(t, &l, start.Add(15*time.Minute))
	if len(s.Quantile) != 3 || *s.Quantile[2].Value != 1 || *s.SampleCount != 101 {
		t.Errorf("got %v, want the last duration alone in the quantiles, and 101 in all", s)
	}
	collected(t, &l, start.Add(20*time.Minute))
	if _, s := collected(t, &l, start.Add(25*time.Minute)); len(s.Quantile) != 0 {
		t.Errorf("quantiles of nothing: %v", s.Quantile)
	}
}
