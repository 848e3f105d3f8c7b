package clusterstate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/labels"
)

// selectorOf returns a selector for the first of many values.
func selectorOf(values int) string {
	var all []string
	for i := range values {
		all = append(all, fmt.Sprintf("a%02d", i))
	}
	return "app in (" + strings.Join(all, ",") + ")"
}

func TestCover(t *testing.T) {
	spread := func(n int, set func(i int) PodSet) (sets []PodSet) {
		for i := range n {
			sets = append(sets, set(i))
		}
		return sets
	}
	for _, tc := range []struct {
		name  string
		needs []PodSet
		limit int
		want  []PodSet
	}{
		{"none", nil, 1, nil},
		{"few", []PodSet{{"x", "a"}, {"y", ""}, {"", "b"}}, 3, []PodSet{{"", "b"}, {"x", "a"}, {"y", ""}}},
		{"within others", []PodSet{{"x", "a"}, {"x", ""}, {"", "b"}, {"y", "b"}}, 9, []PodSet{{"", "b"}, {"x", ""}}},
		{"within all", []PodSet{{"x", "a"}, {}, {"", "b"}}, 9, []PodSet{{}}},
		{"many labels in a namespace", spread(maxSelectors+1, func(i int) PodSet { return PodSet{"x", fmt.Sprint(i)} }), 9, []PodSet{{"x", ""}}},
		{"labels in many namespaces", spread(maxNamespaces+1, func(i int) PodSet { return PodSet{fmt.Sprint(i), "a"} }), 99, []PodSet{{"", "a"}}},
		{"many namespaces", spread(3, func(i int) PodSet { return PodSet{fmt.Sprint(i), ""} }), 2, []PodSet{{}}},
		{"widened to fit", []PodSet{{"x", "a"}, {"x", "b"}, {"x", "c"}, {"y", "d"}}, 2, []PodSet{{"x", ""}, {"y", "d"}}},
		{"values of a label", []PodSet{{"x", "app=b"}, {"x", "app=a"}, {"x", "app in (c,a)"}, {"y", "app=a"}, {"", "k8s-app=d"}}, 9,
			[]PodSet{{"", "k8s-app=d"}, {"x", "app in (a,b,c)"}, {"y", "app=a"}}},
		{"values of a label beside others", []PodSet{{"x", "app=a,tier=t"}, {"x", "app=b,tier=t"}, {"x", "app=a,tier!=u"}, {"x", "app notin (a),app=b"}}, 9,
			[]PodSet{{"x", "app in (a,b),tier=t"}, {"x", "app notin (a),app=b"}, {"x", "app=a,tier!=u"}}},
		{"many values", spread(maxValues+1, func(i int) PodSet { return PodSet{"x", fmt.Sprintf("app=a%02d", i)} }), 9,
			[]PodSet{{"x", selectorOf(maxValues)}, {"x", fmt.Sprint("app=a", maxValues)}}},
		{"many values of one selector", []PodSet{{"x", selectorOf(maxValues + 1)}, {"x", "app=b"}}, 9, []PodSet{{"x", selectorOf(maxValues + 1)}, {"x", "app=b"}}},
		{"values that would be in two sets", append(spread(maxValues+1, func(i int) PodSet { return PodSet{"x", fmt.Sprintf("app=a%02d", i)} }),
			PodSet{"x", "app in (a00,a50)"}), 9, []PodSet{{"x", strings.Replace(selectorOf(maxValues), "a49", "a50", 1)}, {"x", "app in (a49,a50)"}}},
		{"too many values", spread(maxSelectors*maxValues+1, func(i int) PodSet { return PodSet{"x", fmt.Sprintf("app=a%03d", i)} }), 9, []PodSet{{"x", ""}}},
		{"values within those of all namespaces", []PodSet{{"x", "app=a"}, {"", "app=a,b=c"}, {"", "app=b,b=c"}, {"x", "app=b,b=c,d=e"}}, 9,
			[]PodSet{{"", "app in (a,b),b=c"}, {"x", "app=a"}}},
		{"a selector that is too long", []PodSet{{"x", selectorOf(maxSelector / 4)}, {"x", "app=a"}, {"y", "app=a"}}, 9, []PodSet{{"x", ""}, {"y", "app=a"}}},
		{"one of all namespaces", []PodSet{{"", selectorOf(maxSelector / 4)}, {"x", "app=a"}}, 9, []PodSet{{}}},
		{"thousands of keys", spread(5000, func(i int) PodSet { return PodSet{"x", fmt.Sprintf("k%d=a", i)} }), 9, []PodSet{{"x", ""}}},
		{"thousands of keys of all namespaces", spread(5000, func(i int) PodSet { return PodSet{"", fmt.Sprintf("k%d=a", i)} }), 9, []PodSet{{}}},
		{"twice", []PodSet{{"x", "app=a"}, {"x", "app=a,app in (a)"}}, 9, []PodSet{{"x", "app=a"}}},
		{"no selectors of the API", []PodSet{{"x", "=,"}, {"x", "=,,"}}, 9, []PodSet{{"x", "=,"}, {"x", "=,,"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Cover(tc.needs, tc.limit)
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			for _, need := range tc.needs {
				if !slices.ContainsFunc(got, func(s PodSet) bool { return s.Includes(need) }) {
					t.Errorf("%v is in none of the sets, so that packets would wait for its list for ever", need)
				}
			}
		})
	}
}

func TestIncludes(t *testing.T) {
	for _, tc := range []struct {
		wide, narrow PodSet
		want         bool
	}{
		{PodSet{}, PodSet{"x", "a=b"}, true},
		{PodSet{"x", ""}, PodSet{}, false},
		{PodSet{"x", ""}, PodSet{"y", ""}, false},
		{PodSet{"", "a=b"}, PodSet{"x", "a=b"}, true},
		{PodSet{"x", "a=b"}, PodSet{"x", ""}, false},
		{PodSet{"x", "a in (b,c)"}, PodSet{"x", "a=b"}, true},
		{PodSet{"x", "a in (b,c)"}, PodSet{"x", "a in (b,d)"}, false},
		{PodSet{"x", "a in (b,c)"}, PodSet{"x", "a=b,d"}, true},
		{PodSet{"x", "a in (b,c),d"}, PodSet{"x", "a=b"}, false},
		{PodSet{"x", "a notin (b,c)"}, PodSet{"x", "a=b"}, false},
		{PodSet{"x", "a notin (b,c)"}, PodSet{"x", "a notin (b,c),d=e"}, true},
		{PodSet{"x", "a"}, PodSet{"x", "!a"}, false},
	} {
		if got := tc.wide.Includes(tc.narrow); got != tc.want {
			t.Errorf("%v includes %v: %v", tc.wide, tc.narrow, got)
		}
	}
}

// TestMergedSetsAreExact merges random sets and asks for the pods of random labels.
func TestMergedSetsAreExact(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 18))
	of := func(values ...string) string { return values[r.IntN(len(values))] }
	has := func(sets []PodSet, namespace string, l labels.Set) bool {
		for _, s := range sets {
			selector, err := labels.Parse(s.Labels)
			if err != nil {
				t.Fatal(err)
			}
			if (s.Namespace == "" || s.Namespace == namespace) && selector.Matches(l) {
				return true
			}
		}
		return false
	}
	fewer := 0
	for range 500 {
		var sets []PodSet
		for range 1 + r.IntN(8) {
			var parts []string
			for _, key := range []string{"a", "b", "a"} {
				parts = append(parts, key+of("=1", "=2", " in (1,2)", " in (2,3)", " notin (1)", "", "!=2"))
			}
			sets = append(sets, PodSet{of("", "x", "y"), strings.Join(parts[r.IntN(3):], ",")})
		}
		merged := merge(sets)
		if len(merged) < len(sets) {
			fewer++
		}
		for range 50 {
			namespace, l := of("x", "y", "z"), labels.Set{}
			for _, key := range []string{"a", "b"} {
				if v := of("", "1", "2", "3", "4"); v != "" {
					l[key] = v
				}
			}
			if got, want := has(merged, namespace, l), has(sets, namespace, l); got != want {
				t.Fatalf("%v of %s: %v in %v, %v in %v", l, namespace, got, merged, want, sets)
			}
		}
		cover := Cover(sets, 1+r.IntN(8))
		for _, s := range sets {
			if !slices.ContainsFunc(cover, func(o PodSet) bool { return o.Includes(s) }) {
				t.Fatalf("%v is not in %v", s, cover)
			}
			for _, o := range sets {
				if s.Includes(o) && !has([]PodSet{s}, o.Namespace, labels.Set{}) && has([]PodSet{o}, o.Namespace, labels.Set{}) {
					t.Fatalf("%v does not include %v", s, o)
				}
			}
		}
	}
	if fewer < 50 {
		t.Errorf("%d were merged", fewer)
	}
}

// BenchmarkCover covers the most selectors that Cover still merges, each with its own key.
func BenchmarkCover(b *testing.B) {
	const limit = 56
	var needs []PodSet
	for i := range limit * maxValues {
		needs = append(needs, PodSet{"", fmt.Sprintf("k%d=a", i)})
	}
	for b.Loop() {
		Cover(needs, limit)
	}
}
