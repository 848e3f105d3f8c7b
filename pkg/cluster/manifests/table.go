package manifests

import (
	"context"
	"reflect"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

type object = compile.Object

// row is an object of a table with the version of its last change. The object itself has no
// resource version, so that it can be compared with the object in a file.
type row struct {
	object  object
	version int64
}

// table holds the objects of one kind and serves them as an API server would, with resource
// versions and watches. It keeps no history: requests for an old version fail as expired, so
// that the client lists again.
type table struct {
	example object
	ready   <-chan struct{} // requests wait until it is closed

	mu       sync.Mutex
	version  int64
	rows     map[string]row
	watchers map[*watcher]struct{}
}

func newTable(example object, ready <-chan struct{}) *table {
	return &table{
		example:  example,
		ready:    ready,
		version:  1,
		rows:     map[string]row{},
		watchers: map[*watcher]struct{}{},
	}
}

// replace replaces the content of the table by objects, by namespace and name. Watchers
// receive the differences.
func (t *table) replace(objects map[string]object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, old := range t.rows {
		if _, kept := objects[key]; !kept {
			delete(t.rows, key)
			t.version++
			t.notify(watch.Deleted, row{old.object, t.version})
		}
	}
	for key, o := range objects {
		old, known := t.rows[key]
		if known && reflect.DeepEqual(old.object, o) {
			continue
		}
		t.version++
		t.rows[key] = row{o, t.version}
		if known {
			t.notify(watch.Modified, t.rows[key])
		} else {
			t.notify(watch.Added, t.rows[key])
		}
	}
}

// notify queues an event for every watcher of the object. The caller holds t.mu.
func (t *table) notify(typ watch.EventType, r row) {
	for w := range t.watchers {
		if w.wants(r.object) {
			w.queue(watch.Event{Type: typ, Object: r.copy()})
		}
	}
}

// copy returns a copy of the row's object with its version, which the receiver owns.
func (r row) copy() runtime.Object {
	c := r.object.DeepCopyObject().(object)
	c.SetResourceVersion(strconv.FormatInt(r.version, 10))
	return c
}

// listerWatcher serves all objects of the table, or only those with a name.
func (t *table) listerWatcher(name string) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			return t.list(ctx, name)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return t.watch(ctx, name, o)
		},
	}
}

func (t *table) list(ctx context.Context, name string) (runtime.Object, error) {
	if err := t.wait(ctx); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	list := &metav1.List{}
	list.ResourceVersion = strconv.FormatInt(t.version, 10)
	for _, r := range t.rows {
		if name == "" || name == r.object.GetName() {
			list.Items = append(list.Items, runtime.RawExtension{Object: r.copy()})
		}
	}
	return list, nil
}

// watch starts with all objects if the caller has none or asks for them, and with the next
// change if the caller has the current version.
func (t *table) watch(ctx context.Context, name string, o metav1.ListOptions) (watch.Interface, error) {
	if err := t.wait(ctx); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := strconv.FormatInt(t.version, 10)
	streamed := o.SendInitialEvents != nil && *o.SendInitialEvents
	fromStart := streamed || o.ResourceVersion == "" || o.ResourceVersion == "0"
	if !fromStart && o.ResourceVersion != now {
		return nil, apierrors.NewResourceExpired("resource version " + o.ResourceVersion + " is not the current one, " + now)
	}
	w := newWatcher(t, name)
	if fromStart {
		for _, r := range t.rows {
			if w.wants(r.object) {
				w.queue(watch.Event{Type: watch.Added, Object: r.copy()})
			}
		}
	}
	if streamed {
		w.queue(watch.Event{Type: watch.Bookmark, Object: t.endOfInitialEvents()})
	}
	t.watchers[w] = struct{}{}
	go w.run()
	return w, nil
}

// endOfInitialEvents is the bookmark after the initial events of a streamed list.
func (t *table) endOfInitialEvents() runtime.Object {
	b := row{t.example, t.version}.copy().(object)
	b.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return b
}

// wait blocks until the directory has been read once, or returns ctx's error.
func (t *table) wait(ctx context.Context) error {
	select {
	case <-t.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
