package domains

import (
	"container/list"
	"iter"
)

// recent is a map that keeps the order in which its entries were used, so that the
// least recently used can be evicted.
type recent[K comparable, V any] struct {
	elements map[K]*list.Element // of entry
	order    list.List           // least recently used first
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

func newRecent[K comparable, V any]() recent[K, V] {
	return recent[K, V]{elements: make(map[K]*list.Element)}
}

func (r *recent[K, V]) len() int { return len(r.elements) }

// get returns the value of k, the zero V if there is none. It does not count as
// a use.
func (r *recent[K, V]) get(k K) (V, bool) {
	if e := r.elements[k]; e != nil {
		return e.Value.(*entry[K, V]).value, true
	}
	var none V
	return none, false
}

// use makes k the most recently used entry, if there is one.
func (r *recent[K, V]) use(k K) {
	if e := r.elements[k]; e != nil {
		r.order.MoveToBack(e)
	}
}

// put stores v as the value of k and counts as a use.
func (r *recent[K, V]) put(k K, v V) {
	if e := r.elements[k]; e != nil {
		e.Value.(*entry[K, V]).value = v
		r.order.MoveToBack(e)
		return
	}
	r.elements[k] = r.order.PushBack(&entry[K, V]{k, v})
}

func (r *recent[K, V]) remove(k K) {
	if e := r.elements[k]; e != nil {
		r.order.Remove(e)
		delete(r.elements, k)
	}
}

// oldest returns the least recently used entry; ok is false if there is none.
func (r *recent[K, V]) oldest() (k K, v V, ok bool) {
	front := r.order.Front()
	if front == nil {
		return k, v, false
	}
	e := front.Value.(*entry[K, V])
	return e.key, e.value, true
}

// all yields all entries, most recently used first.
func (r *recent[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for at := r.order.Back(); at != nil; at = at.Prev() {
			e := at.Value.(*entry[K, V])
			if !yield(e.key, e.value) {
				return
			}
		}
	}
}
