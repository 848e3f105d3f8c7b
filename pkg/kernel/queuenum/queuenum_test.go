package queuenum

import (
	"slices"
	"testing"
)

// TestRange compares everything with the numbers of each range, up to the last one there is.
func TestRange(t *testing.T) {
	ranges := []Range{{100, 1}, {100, 4}, {103, 2}, {104, 1}, {0, 1}, {65535, 1}, {65530, 6}, {200, 0}}
	for _, r := range ranges {
		all := r.All()
		for number := range 1 << 16 {
			if got, want := r.Contains(uint16(number)), slices.Contains(all, uint16(number)); got != want {
				t.Errorf("%v contains %d: %v, want %v", r, number, got, want)
			}
		}
		for _, o := range ranges {
			if got, want := r.Overlaps(o), slices.ContainsFunc(all, o.Contains); got != want {
				t.Errorf("%v overlaps %v: %v, want %v", r, o, got, want)
			}
		}
	}
	for r, want := range map[Range]string{{7, 1}: "7", {7, 3}: "7-9", {65530, 6}: "65530-65535"} {
		if got := r.String(); got != want {
			t.Errorf("range %q, want %q", got, want)
		}
	}
}
