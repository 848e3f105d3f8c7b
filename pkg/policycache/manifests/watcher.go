package manifests

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// watcher is one watch of a table. A slow receiver delays no other: what it has
// not taken yet is kept for it.
type watcher struct {
	table  *table
	name   string // the one object wanted, or "" for all
	events chan watch.Event

	pending []watch.Event // under table.mu
	more    chan struct{} // pending was empty and is no more

	stopOnce sync.Once
	stop     chan struct{}
	done     chan struct{} // run has returned
}

func newWatcher(t *table, name string) *watcher {
	return &watcher{
		table:  t,
		name:   name,
		events: make(chan watch.Event),
		more:   make(chan struct{}, 1),
		stop:   make(chan struct{}),
		done:   make(chan struct{}),
	}
}

func (w *watcher) wants(o metav1.Object) bool {
	return w.name == "" || w.name == o.GetName()
}

// queue adds an event. table.mu is held.
func (w *watcher) queue(e watch.Event) {
	w.pending = append(w.pending, e)
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// take returns what has been queued since it was last called.
func (w *watcher) take() []watch.Event {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	taken := w.pending
	w.pending = nil
	return taken
}

// run hands the queued events on until Stop.
func (w *watcher) run() {
	defer close(w.done)
	defer close(w.events)
	for {
		for _, e := range w.take() {
			select {
			case w.events <- e:
			case <-w.stop:
				return
			}
		}
		select {
		case <-w.more:
		case <-w.stop:
			return
		}
	}
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.events }

// Stop implements watch.Interface. It returns when nothing of the watch is left.
func (w *watcher) Stop() {
	w.stopOnce.Do(func() {
		w.table.mu.Lock()
		delete(w.table.watchers, w)
		w.table.mu.Unlock()
		close(w.stop)
	})
	<-w.done
}
