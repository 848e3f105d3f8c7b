package policy

import (
	"fmt"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"k8s.io/apimachinery/pkg/labels"
)

// randomLabels returns mostly few and sometimes many labels, with values of any length.
func randomLabels(c chance) labels.Set {
	all := labels.Set{}
	for range c.IntN(pick(c, 1, 6, 6, 6, maxPacked+2, 100)) {
		all[fmt.Sprint(pick(c, "a", "b", strings.Repeat("k", 200)), c.IntN(100))] = strings.Repeat("v", pick(c, 0, 1, 63, 127, 128, 20000)) + fmt.Sprint(c.IntN(3))
	}
	return all
}

// Labels behave like the map from which they are made.
func TestLabels(t *testing.T) {
	c := chance{rand.New(rand.NewPCG(1, 0))}
	hashes := maphash.MakeSeed()
	for range 2000 {
		want := randomLabels(c)
		got := NewLabels(want)
		if !got.Known() || got.Len() != len(want) || !maps.Equal(maps.Collect(got.All()), want) || !labels.Equals(got.Set(), want) || got.String() != want.String() {
			t.Fatalf("%v are %v", want, got)
		}
		for k, v := range want {
			if value, ok := got.Lookup(k); !ok || value != v || got.Get(k) != v || !got.Has(k) || !got.Holds(Label[[]byte]{[]byte(k), []byte(v)}) {
				t.Fatalf("%v: %s is %q", want, k, value)
			}
			if got.Has(k+"x") || got.Holds(Label[[]byte]{[]byte(k), []byte(v + "x")}) {
				t.Fatalf("%v have what they have not", want)
			}
		}
		same, other := NewLabels(maps.Clone(want)), NewLabels(randomLabels(c))
		if !got.Equal(same) || got.Hash(hashes) != same.Hash(hashes) {
			t.Fatalf("%v are not equal to themselves", want)
		}
		if got.Equal(other) != labels.Equals(want, other.Set()) {
			t.Fatalf("%v and %v: equal is %v", want, other, got.Equal(other))
		}
	}
}

func TestTheLastLabelOfAKeyCounts(t *testing.T) {
	for _, more := range []int{0, maxPacked} {
		list := []Label[[]byte]{{[]byte("b"), []byte("1")}, {[]byte("a"), []byte("2")}, {[]byte("b"), []byte("3")}}
		for i := range more {
			list = append(list, Label[[]byte]{[]byte(fmt.Sprint("c", i)), nil})
		}
		got := PackLabels(list)
		if got.Len() != 2+more || got.Get("a") != "2" || got.Get("b") != "3" {
			t.Errorf("got %v", got)
		}
	}
}

// A namespace without labels differs from an unknown namespace.
func TestUnknownLabels(t *testing.T) {
	unknown, none := Labels{}, NewLabels(nil)
	if unknown.Known() || !none.Known() || unknown.Equal(none) || none.Equal(unknown) || !unknown.Equal(Labels{}) || !none.Equal(NewLabels(labels.Set{})) {
		t.Error("they are mistaken for each other")
	}
	if unknown.Len()+none.Len() > 0 || unknown.Has("") || none.Has("") || unknown.Set() != nil || none.Set() != nil {
		t.Error("they have labels")
	}
}

// Pods share keys: only values take memory for each pod.
func TestKeysAreShared(t *testing.T) {
	a, b := NewLabels(labels.Set{"app": "a", "x": "1"}), NewLabels(labels.Set{"app": "b", "x": "2"})
	if unsafe.StringData(a.keys.Value()) != unsafe.StringData(b.keys.Value()) {
		t.Error("the keys of two labels are stored twice")
	}
}

func TestEqualLabels(t *testing.T) {
	a := NewLabels(labels.Set{"app": "a"})
	for _, other := range []labels.Set{nil, {"tier": "a"}, {"app": "b"}, {"app": "a", "x": ""}} {
		if a.Equal(NewLabels(other)) {
			t.Errorf("%v and %v are equal", a, other)
		}
	}
}
