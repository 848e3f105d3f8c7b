package status

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/status/denials"
)

// denials returns the Denials condition of a policy, none if it denied nothing recently.
// While that is unknown it returns the stored condition.
func (w *kindWriter) denials(key types.NamespacedName, generation int64, stored []metav1.Condition) []metav1.Condition {
	if w.cfg.Denials == nil {
		return nil
	}
	p := denials.Policy{Kind: w.kind.Name, NamespacedName: key}
	text, known := w.cfg.Denials.Of(p)
	if c := denialsOf(stored); !known && c != nil {
		w.cfg.Denials.Await(p)
		return []metav1.Condition{*c}
	}
	if text.Message == "" {
		return nil
	}
	reason := PacketsDenied
	if text.Audited {
		reason = WouldDeny
	}
	c := condition(Denials, metav1.ConditionTrue, reason, truncate(text.Message, maxMessage))
	c.ObservedGeneration = generation
	return []metav1.Condition{c}
}

// denialsOf returns the Denials condition, nil if there is none.
func denialsOf(conditions []metav1.Condition) *metav1.Condition {
	if i := slices.IndexFunc(conditions, isDenials); i >= 0 {
		return &conditions[i]
	}
	return nil
}

func isDenials(c metav1.Condition) bool { return c.Type == Denials }

// kindWriters are the active writers. They implement denials.Policies for policies with
// conditions.
type kindWriters struct {
	listed chan struct{} // receives after a kind is listed

	mu       sync.Mutex
	kind     map[string]*kindWriter
	unserved map[string]bool // kinds that the server does not serve
}

func newKindWriters() *kindWriters {
	return &kindWriters{listed: make(chan struct{}, 1), kind: make(map[string]*kindWriter), unserved: make(map[string]bool)}
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

// Listed implements denials.Policies.
func (k *kindWriters) Listed() <-chan struct{} { return k.listed }

// Kinds implements denials.Policies.
func (k *kindWriters) Kinds() (kinds []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, w := range k.kind {
		if w.informer.HasSynced() {
			kinds = append(kinds, name)
		}
	}
	return kinds
}

// Has implements denials.Policies.
func (k *kindWriters) Has(p denials.Policy) bool { return k.writer(p) != nil }

// writer returns the writer of a policy, nil if the policy does not exist.
func (k *kindWriters) writer(p denials.Policy) *kindWriter {
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
func (k *kindWriters) enqueue(p denials.Policy) {
	if w := k.writer(p); w != nil {
		w.metrics.markPending(w.item(p.NamespacedName))
		w.queue.Add(p.NamespacedName)
	}
}
