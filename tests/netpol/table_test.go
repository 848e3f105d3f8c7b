package netpol

import (
	"slices"
	"testing"
)

var pods = []string{"x/a", "x/b", "y/a"}

func TestTruthTableSet(t *testing.T) {
	table := NewTruthTable(pods, false)
	table.Set("x/a", "y/a", true)
	for _, from := range pods {
		for _, to := range pods {
			want := from == "x/a" && to == "y/a"
			if got := table.Get(from, to); got != want {
				t.Errorf("Get(%s, %s) = %v, want %v", from, to, got, want)
			}
		}
	}
}

func TestTruthTableCompare(t *testing.T) {
	want := NewTruthTable(pods, true)
	got := NewTruthTable(pods, true)
	if differ := want.Compare(got); len(differ) != 0 {
		t.Errorf("equal tables differ in %v", differ)
	}
	if diff := want.Diff(got); diff != "" {
		t.Errorf("Diff of equal tables = %q, want none", diff)
	}
	got.Set("x/b", "y/a", false)
	got.Set("y/a", "x/a", false)

	if differ := want.Compare(got); !slices.Equal(differ, []Pair{{"x/b", "y/a"}, {"y/a", "x/a"}}) {
		t.Errorf("Compare = %v", differ)
	}
}

func TestTruthTableUnknownPodPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a cell that does not exist was read")
		}
	}()
	NewTruthTable(pods, true).Get("x/a", "x/c")
}

func TestTruthTableDiff(t *testing.T) {
	want := NewTruthTable(pods, true).Fill(func(from, to string) bool { return from == to || to == "y/a" })
	got := NewTruthTable(pods, true).Fill(want.Get)
	got.Set("x/b", "y/a", false)

	const expected = `
       expected    observed
       x    y      x    y
       a b  a      a b  a
x/a    ✓ ·  ✓      ✓ ·  ✓
x/b    · ✓  ✓      · ✓  ✗
y/a    · ·  ✓      · ·  ✓
x/b -> y/a: timed out, should be connected
`
	if diff := "\n" + want.Diff(got); diff != expected {
		t.Errorf("got:%s\nwant:%s", diff, expected)
	}
}

func TestShowAlignsLongNames(t *testing.T) {
	names := []string{"kube-system/dns", "web/front"}
	got := "\n" + Show(ASCII, Grid{Title: "TCP 80", Want: NewTruthTable(names, true)})
	const want = `
                   TCP 80
                   kube-  web
                   dns    front
kube-system/dns    +      +
web/front          +      +
`
	if got != want {
		t.Errorf("got:%s\nwant:%s", got, want)
	}
}
