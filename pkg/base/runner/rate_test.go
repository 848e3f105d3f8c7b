package runner

import (
	"math"
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name  string
		count int           // of events
		every time.Duration // between two events
		then  time.Duration // without events
		want  float64
	}{
		{"none", 0, 0, 0, 0},
		{"steady", 5000, 10 * time.Millisecond, 0, 100},
		{"at once", 300, 0, 0, 300},
		{"at once, and a second later", 300, 0, time.Second, 300 / math.E},
		{"long ago", 300, 0, time.Hour, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var r Rate
			at := now
			for range tt.count {
				at = at.Add(tt.every)
				r.Add(at, 1)
			}
			if got := r.Add(at.Add(tt.then), 0); math.Abs(got-tt.want) > 1 {
				t.Errorf("%.1f a second, want %.1f", got, tt.want)
			}
		})
	}
}
