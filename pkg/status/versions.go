package status

import (
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
)

// deletionsCount is how long a deletion counts as a change that agents may lack. An agent that has not
// heard of it after 45 seconds says that it does not watch the kind. After a restore of the server's data,
// the version may not be reached for long.
const deletionsCount = 2 * time.Minute

// deletions remembers the last deletion of an object of a kind, which no store shows.
type deletions struct {
	mu      sync.Mutex
	version string
	at      time.Time
}

// note takes what an informer says of a deleted object.
func (d *deletions) note(obj any) {
	o, ok := obj.(metav1.Object)
	if !ok {
		return // a list lacked it: its version is not that of the deletion
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.version, d.at = o.GetResourceVersion(), time.Now()
}

// newest returns the version of the newest change of the objects in a store, empty without any. It does
// not remember versions that have been seen before: after a restore they may be newer than any that the
// server has.
func (d *deletions) newest(store cache.Store) (newest string) {
	d.mu.Lock()
	if time.Since(d.at) < deletionsCount {
		newest = d.version
	}
	d.mu.Unlock()
	for _, obj := range store.List() {
		if o, ok := obj.(metav1.Object); ok && (newest == "" || inforce.Reaches(o.GetResourceVersion(), newest)) {
			newest = o.GetResourceVersion()
		}
	}
	return newest
}

// versions is gate.Known.
func (w *Writer) versions(spaces *namespaces) (map[string]string, error) {
	versions := map[string]string{}
	var errs []error
	add := func(kind string, informer cache.SharedIndexInformer, d *deletions) {
		if !informer.HasSynced() {
			errs = append(errs, fmt.Errorf("not listed: %s", kind))
		}
		if newest := d.newest(informer.GetStore()); newest != "" {
			versions[kind] = newest
		}
	}
	if spaces != nil {
		add("Namespace", spaces.informer, &spaces.deletions)
	}
	for _, k := range w.cfg.Kinds {
		switch writer, served := w.kinds.of(k.Name); {
		case writer != nil:
			add(k.Name, writer.informer, &writer.deletions)
		case served:
			errs = append(errs, fmt.Errorf("not listed: %s", k.Name))
		}
	}
	return versions, errors.Join(errs...)
}
