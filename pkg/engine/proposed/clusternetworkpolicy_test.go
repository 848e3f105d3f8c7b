package proposed

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/randfill"
)

// fill returns a random value with no nil pointers, from a fixed seed.
func fill[T any](seed int64) *T {
	into := new(T)
	randfill.NewWithSeed(seed).NilChance(0).NumElements(1, 2).MaxDepth(12).Funcs(
		func(e *metav1.ManagedFieldsEntry, _ randfill.Continue) { e.Manager = "kubectl" }, // random bytes are no fields
		func(t *metav1.Time, _ randfill.Continue) { *t = metav1.Unix(seed, 0) },
	).Fill(into)
	return into
}

func encode(t *testing.T, o any) string {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What the released type encodes is decoded and encoded again without a difference.
func TestReleasedFieldsAreKept(t *testing.T) {
	for seed := range int64(20) {
		want := encode(t, fill[v1beta1.ClusterNetworkPolicy](seed))
		var p ClusterNetworkPolicy
		if err := json.Unmarshal([]byte(want), &p); err != nil {
			t.Fatal(err)
		}

		if diff := cmp.Diff(want, encode(t, &p)); diff != "" {
			t.Fatalf("seed %d, -released +proposed:\n%s", seed, diff)
		}
	}
}

// A copy is equal, and what is written into the original does not change it.
func TestDeepCopySharesNothing(t *testing.T) {
	for seed := range int64(20) {
		list := fill[ClusterNetworkPolicyList](seed)
		before := encode(t, list)
		c := list.DeepCopyObject()
		if diff := cmp.Diff(before, encode(t, c)); diff != "" {
			t.Fatalf("seed %d, -original +copy:\n%s", seed, diff)
		}

		erase(reflect.ValueOf(list).Elem())

		if diff := cmp.Diff(before, encode(t, c)); diff != "" {
			t.Fatalf("seed %d: the copy changed with the original:\n%s", seed, diff)
		}
	}
}

// As above, for groups.
func TestDeepCopyOfGroupsSharesNothing(t *testing.T) {
	for seed := range int64(20) {
		list := fill[CIDRGroupList](seed)
		before := encode(t, list)
		c := list.DeepCopyObject()

		erase(reflect.ValueOf(list).Elem())

		if diff := cmp.Diff(before, encode(t, c)); diff != "" {
			t.Fatalf("seed %d: the copy is another, or changed with the original:\n%s", seed, diff)
		}
	}
}

// erase sets every value to zero that can be reached from v, in place.
func erase(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			erase(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				erase(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			erase(v.Index(i))
		}
	case reflect.Map:
		v.Clear()
	default:
		v.SetZero()
	}
}
