package agent

import (
	"slices"
	"testing"
)

// TestQueuesThatDecide: what the table counts as steered goes to these.
func TestQueuesThatDecide(t *testing.T) {
	cfg := Config{Queue: 100, Queues: 2}
	var got []int
	for n := cfg.numbers().first - 1; n <= cfg.numbers().last()+1; n++ {
		if cfg.decides(uint16(n)) {
			got = append(got, n)
		}
	}
	if want := []int{100, 101, 103, 104}; !slices.Equal(got, want) {
		t.Errorf("queues %v decide, want %v", got, want)
	}
}
