package status

import (
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/kube-network-policies/pkg/status/enforced"
)

// kindWriters are the active writers.
type kindWriters struct {
	mu       sync.Mutex
	kind     map[string]*kindWriter
	unserved map[string]bool // kinds that the server does not serve
}

func newKindWriters() *kindWriters {
	return &kindWriters{kind: make(map[string]*kindWriter), unserved: make(map[string]bool)}
}

// setServed records whether the server may serve a kind.
func (k *kindWriters) setServed(kind string, served bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unserved[kind] = !served
}

// of returns the writer of a kind, and otherwise whether the kind may be served.
func (k *kindWriters) of(kind string) (w *kindWriter, served bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kind[kind], !k.unserved[kind]
}

// add adds a writer, until the returned function is called.
func (k *kindWriters) add(w *kindWriter) (end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kind[w.kind.Name] = w
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.kind, w.kind.Name)
	}
}

// writer returns the writer of a policy, nil if the policy does not exist.
func (k *kindWriters) writer(p enforced.Policy) *kindWriter {
	k.mu.Lock()
	w := k.kind[p.Kind]
	k.mu.Unlock()
	if w == nil {
		return nil
	}
	obj, _, _ := w.informer.GetStore().GetByKey(cacheKey(p.NamespacedName))
	o, ok := obj.(*unstructured.Unstructured)
	// A name with a slash would yield the key of another policy.
	if !ok || o.GetNamespace() != p.Namespace || o.GetName() != p.Name {
		return nil
	}
	return w
}

// enqueue queues a policy if it exists.
func (k *kindWriters) enqueue(p enforced.Policy) {
	if w := k.writer(p); w != nil {
		w.metrics.markPending(w.item(p.NamespacedName))
		w.queue.Add(p.NamespacedName)
	}
}
