package verdictcache

import (
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

func TestRecentPacketsAreCounted(t *testing.T) {
	const within = 10 * time.Second
	type step struct {
		class packet.Class
		at    time.Duration
		want  int
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"each packet", []step{{class(1), 0, 1}, {class(1), 0, 2}, {class(1), time.Second, 3}}},
		{"each class for itself", []step{{class(1), 0, 1}, {class(2), 0, 1}, {class(1), 0, 2}}},
		{"within the time", []step{{class(1), 0, 1}, {class(1), within, 2}}},
		{"not after it", []step{{class(1), 0, 1}, {class(1), within + time.Second, 1}, {class(1), within + time.Second, 2}}},
		{"from the first packet on", []step{{class(1), 0, 1}, {class(1), 8 * time.Second, 2}, {class(1), 16 * time.Second, 1}}},
		{"when seconds begin again", []step{{class(1), 65530 * time.Second, 1}, {class(1), 65537 * time.Second, 2}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRecent()
			r.seed = 1 // these classes have different slots
			for i, s := range tt.steps {
				if got := r.count(s.class, r.epoch.Add(s.at), within); got != s.want {
					t.Errorf("step %d: %d packets, want %d", i, got, s.want)
				}
			}
		})
	}
}

func TestRecentPacketsSaturate(t *testing.T) {
	r := newRecent()
	for range 10 * maxCount {
		r.count(class(1), r.epoch, time.Second)
	}
	if got := r.count(class(1), r.epoch, time.Second); got != maxCount {
		t.Errorf("%d packets, want %d", got, maxCount)
	}
}
