package conntrack

import (
	"testing"
	"time"
)

func TestBudget(t *testing.T) {
	const atMost = 500 * time.Millisecond
	start := time.Unix(1700000000, 0)
	var b budget
	spend := func(at, took, want time.Duration) {
		t.Helper()
		if got := b.spend(start.Add(at), took, atMost); got != want {
			t.Errorf("a check of %v that ends after %v is followed by a pause of %v, want %v", took, at, got, want)
		}
	}

	spend(0, burst, 0)
	spend(0, 10*time.Millisecond, restShare*10*time.Millisecond)
	spend(30*time.Second, 10*time.Millisecond, 0) // a tenth of that time has refilled the budget
	spend(30*time.Second, time.Minute, atMost/restShare*restShare)
	spend(50*time.Second, 0, 0) // a check of one minute does not delay later ones by ten
}
