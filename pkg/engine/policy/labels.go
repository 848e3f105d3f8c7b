package policy

import (
	"encoding/binary"
	"hash/maphash"
	"iter"
	"slices"
	"unique"

	"k8s.io/apimachinery/pkg/labels"
)

// Labels are the labels of a pod or of a namespace. They are immutable. Labels with the same keys
// share them, so a pod stores little more than its values. The zero Labels belong to an object that
// is not known.
type Labels struct{ *packed }

var _ labels.Labels = Labels{}

// packed holds labels sorted by key.
type packed struct {
	keys   unique.Handle[string] // items, one for each label
	values string                // as many items
	// many holds all labels if there are more than maxPacked; keys and values are empty then.
	many labels.Set
}

// maxPacked is the most labels that are searched one by one.
const maxPacked = 32

// Label is a key and its value.
type Label[T string | []byte] struct{ Key, Value T }

// noLabels belongs to a known object without labels.
var noLabels = &packed{keys: unique.Make("")}

// NewLabels returns the labels of an object that is known.
func NewLabels(all map[string]string) Labels {
	var room [maxPacked]Label[string]
	list := room[:0]
	for k, v := range all {
		list = append(list, Label[string]{k, v})
	}
	return PackLabels(list)
}

// PackLabels returns the labels of a known object. It sorts all, but does not retain it. If a key
// is repeated, its last value counts.
func PackLabels[T string | []byte](all []Label[T]) Labels {
	slices.SortStableFunc(all, func(a, b Label[T]) int {
		switch {
		case string(a.Key) < string(b.Key):
			return -1
		case string(a.Key) > string(b.Key):
			return 1
		}
		return 0
	})
	last := all[:0]
	for i, l := range all {
		if i+1 == len(all) || string(l.Key) != string(all[i+1].Key) {
			last = append(last, l)
		}
	}
	switch {
	case len(last) == 0:
		return Labels{noLabels}
	case len(last) > maxPacked:
		many := make(labels.Set, len(last))
		for _, l := range last {
			many[string(l.Key)] = string(l.Value)
		}
		return Labels{&packed{keys: noLabels.keys, many: many}}
	}
	var keyRoom, valueRoom [512]byte
	keys, values := keyRoom[:0], valueRoom[:0]
	for _, l := range last {
		keys = append(binary.AppendUvarint(keys, uint64(len(l.Key))), l.Key...)
		values = append(binary.AppendUvarint(values, uint64(len(l.Value))), l.Value...)
	}
	return Labels{&packed{keys: unique.Make(string(keys)), values: string(values)}}
}

// cut splits off the first item.
func cut(items string) (item, rest string) {
	if length := items[0]; length < 0x80 { // nearly all: the compiler inlines this
		return items[1 : 1+length], items[1+length:]
	}
	return cutLong(items)
}

// cutLong is cut for items of any length.
func cutLong(items string) (item, rest string) {
	var length uint64
	at := 0
	for shift := 0; ; shift += 7 {
		b := items[at]
		at++
		length |= uint64(b&0x7f) << shift
		if b < 0x80 {
			break
		}
	}
	end := at + int(length)
	return items[at:end], items[end:]
}

// Known reports whether l are the labels of an object that is known.
func (l Labels) Known() bool { return l.packed != nil }

// isMany reports whether there are more than maxPacked labels.
func (l Labels) isMany() bool { return l.packed != nil && l.many != nil }

// All yields the keys and values in no order.
func (l Labels) All() iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		if l.packed == nil {
			return
		}
		for k, v := range l.many {
			if !yield(k, v) {
				return
			}
		}
		for keys, values := l.keys.Value(), l.values; len(keys) > 0; {
			var key, value string
			key, keys = cut(keys)
			value, values = cut(values)
			if !yield(key, value) {
				return
			}
		}
	}
}

// Len returns the number of labels.
func (l Labels) Len() int {
	if l.packed == nil {
		return 0
	}
	n := len(l.many)
	for keys := l.keys.Value(); len(keys) > 0; n++ {
		_, keys = cut(keys)
	}
	return n
}

// Has reports whether there is a label with that key.
func (l Labels) Has(key string) bool {
	_, ok := l.Lookup(key)
	return ok
}

// Get returns the value of a label, "" if there is none with that key.
func (l Labels) Get(key string) string {
	value, _ := l.Lookup(key)
	return value
}

// Lookup returns the value of the label with that key and whether there is one.
func (l Labels) Lookup(key string) (value string, ok bool) { return lookup(l, key) }

// Holds reports whether l has the label.
func (l Labels) Holds(label Label[[]byte]) bool {
	value, ok := lookup(l, label.Key)
	return ok && value == string(label.Value)
}

func lookup[T string | []byte](l Labels, key T) (value string, ok bool) {
	switch {
	case l.packed == nil:
		return "", false
	case l.many != nil:
		value, ok = l.many[string(key)]
		return value, ok
	}
	for keys, values := l.keys.Value(), l.values; len(keys) > 0; {
		var k, v string
		k, keys = cut(keys)
		v, values = cut(values)
		if k == string(key) {
			return v, true
		}
	}
	return "", false
}

// Equal reports whether l and o have the same labels and both objects are known, or neither is.
func (l Labels) Equal(o Labels) bool {
	if l.packed == o.packed {
		return true
	}
	return l.packed != nil && o.packed != nil && l.keys == o.keys && l.values == o.values && labels.Equals(l.many, o.many)
}

// Hash returns a hash; equal labels have equal hashes.
func (l Labels) Hash(seed maphash.Seed) uint64 {
	if l.packed == nil {
		return 0
	}
	return maphash.Comparable(seed, l.keys) ^ maphash.String(seed, l.values) ^ uint64(len(l.many))
}

// Set returns the labels as a new map, nil if there are none.
func (l Labels) Set() labels.Set {
	var all labels.Set
	for k, v := range l.All() {
		if all == nil {
			all = labels.Set{}
		}
		all[k] = v
	}
	return all
}

// String returns the labels as labels.Set does.
func (l Labels) String() string { return l.Set().String() }
