package spelling

import "testing"

func TestDistance(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "web", 3},
		{"web", "web", 0},
		{"web", "wb", 1},
		{"web", "webs", 1},
		{"web", "wet", 1},
		{"web", "wbe", 1},
		{"NetworkPolicie", "NetworkPolicy", 2},
		{"metircs", "metrics", 1},
		{"ab", "ba", 1},
		{"ca", "abc", 3}, // not 2: swapped bytes are not changed again
		{"frontend", "backend", 5},
	} {
		t.Run(tc.a+"-"+tc.b, func(t *testing.T) {
			if got := Distance(tc.a, tc.b); got != tc.want {
				t.Errorf("from %q to %q: %d, want %d", tc.a, tc.b, got, tc.want)
			}
			if got := Distance(tc.b, tc.a); got != tc.want {
				t.Errorf("from %q to %q: %d, want %d", tc.b, tc.a, got, tc.want)
			}
		})
	}
}
