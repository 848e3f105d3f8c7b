package agent

import (
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
)

// TestQueuesThatDecide: packets that the table counts as steered go to these queues.
func TestQueuesThatDecide(t *testing.T) {
	cfg := Config{Queue: 100, queues: 2}
	var got []int
	for n := int(cfg.Queue) - 1; n <= cfg.numbers().Last()+1; n++ {
		if cfg.decides(uint16(n)) {
			got = append(got, n)
		}
	}
	if want := []int{100, 101, 103, 104}; !slices.Equal(got, want) {
		t.Errorf("queues %v decide, want %v", got, want)
	}
}

func TestHolderHasTheLastNumber(t *testing.T) {
	cfg := Config{Queue: 7100, queues: 4, started: 5}
	if got, want := cfg.holder(), (handover.Holder{Started: 5, Queue: 7110}); got != want {
		t.Errorf("holder %v, want %v", got, want)
	}
}
