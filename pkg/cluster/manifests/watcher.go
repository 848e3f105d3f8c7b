package manifests

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
)

// watcher is one watch of a table. A slow receiver does not delay others: its events are
// queued.
type watcher struct {
	table  *table
	name   string // name of the watched object, or "" for all
	events chan watch.Event

	pending []watch.Event // guarded by table.mu
	more    chan struct{} // signals that pending is no longer empty

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

// queue adds an event. The caller holds table.mu.
func (w *watcher) queue(e watch.Event) {
	w.pending = append(w.pending, e)
	runner.Signal(w.more)
}

// dequeue returns and removes the queued events.
func (w *watcher) dequeue() []watch.Event {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	taken := w.pending
	w.pending = nil
	return taken
}

// run delivers queued events until Stop.
func (w *watcher) run() {
	defer close(w.done)
	defer close(w.events)
	for {
		for _, e := range w.dequeue() {
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

// Stop implements watch.Interface. It returns when the watch has ended.
func (w *watcher) Stop() {
	w.stopOnce.Do(func() {
		w.table.mu.Lock()
		delete(w.table.watchers, w)
		w.table.mu.Unlock()
		close(w.stop)
	})
	<-w.done
}
