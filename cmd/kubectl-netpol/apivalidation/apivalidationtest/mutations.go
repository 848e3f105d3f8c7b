package apivalidationtest

import (
	"iter"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// odd are values that are valid for some fields and invalid for others.
var odd = []any{nil, "", "a b", "http", "10.0.0.0/33", "192.168.0.0/16", int64(0), int64(-1), int64(65536), true, map[string]any{}, map[string]any{"a": "b"}, []any{}, []any{"a"}}

// mostItems limits how many items of a list are mutated.
const mostItems = 6

// Mutations yields copies of o in which one field of the spec is missing, duplicated or has
// another value, each with a description of the change. The order is always the same. An
// object is valid only until the next one is yielded.
func Mutations(o map[string]any) iter.Seq2[string, map[string]any] {
	return func(yield func(string, map[string]any) bool) {
		changed := runtime.DeepCopyJSON(o)
		var walk func(path string, value any, set func(any)) bool
		walk = func(path string, value any, set func(any)) bool {
			for _, v := range odd {
				set(v)
				if !yield(path, changed) {
					return false
				}
			}
			set(value)
			switch value := value.(type) {
			case map[string]any:
				for _, key := range slices.Sorted(maps.Keys(value)) {
					kept := value[key]
					delete(value, key)
					if !yield(path+"."+key+" deleted", changed) {
						return false
					}
					value[key] = kept
					if !walk(path+"."+key, kept, func(v any) { value[key] = v }) {
						return false
					}
				}
			case []any:
				set(append(slices.Clone(value), value...))
				if !yield(path+" twice", changed) {
					return false
				}
				set(value)
				for i, kept := range value[:min(len(value), mostItems)] {
					if !walk(path+"[]", kept, func(v any) { value[i] = v }) {
						return false
					}
				}
			}
			return true
		}
		walk("spec", changed["spec"], func(v any) { changed["spec"] = v })
	}
}
