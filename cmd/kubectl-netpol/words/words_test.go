package words

import "testing"

func TestCountsAndLists(t *testing.T) {
	five := []string{"a", "b", "c", "d", "e"}
	for _, tc := range []struct{ got, want string }{
		{Count(0, "pod", "pods"), "0 pods"},
		{Count(1, "policy", "policies"), "1 policy"},
		{Count(uint64(2), "policy", "policies"), "2 policies"},
		{Few(nil, 2, ", "), ""},
		{Few(five[:2], 2, ", "), "a, b"},
		{Few(five, 2, ", "), "a, b, and 3 more"},
		{Few(five, 4, " and "), "a and b and c and d and 1 more"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
	if five[2] != "c" {
		t.Error("Few changed its argument")
	}
}
