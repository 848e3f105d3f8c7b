package status

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/denials"
)

// denials returns the condition that says what the policy denied lately, nothing if that is
// nothing. What is stored stays while it is not known.
func (w *kindWriter) denials(key types.NamespacedName, generation int64, stored []metav1.Condition) []metav1.Condition {
	if w.cfg.Denials == nil {
		return nil
	}
	text, known := w.cfg.Denials.Of(denials.Policy{Kind: w.kind.Name, NamespacedName: key})
	if c := denialsOf(stored); !known && c != nil {
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

// denialsOf returns the condition that says what was denied, nil for none.
func denialsOf(conditions []metav1.Condition) *metav1.Condition {
	if i := slices.IndexFunc(conditions, isDenials); i >= 0 {
		return &conditions[i]
	}
	return nil
}

func withoutDenials(conditions []metav1.Condition) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(conditions), isDenials)
}

func isDenials(c metav1.Condition) bool { return c.Type == Denials }

// kindWriters are those that write.
type kindWriters struct {
	mu   sync.Mutex
	kind map[string]*kindWriter
}

// add adds a writer, until the returned function is called.
func (k *kindWriters) add(w *kindWriter) (end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kind == nil {
		k.kind = map[string]*kindWriter{}
	}
	k.kind[w.kind.Name] = w
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.kind, w.kind.Name)
	}
}

// enqueue queues a policy, if it exists: agents may know one that is gone.
func (k *kindWriters) enqueue(p denials.Policy) {
	k.mu.Lock()
	w := k.kind[p.Kind]
	k.mu.Unlock()
	if w == nil {
		return
	}
	if _, exists, err := w.informer.GetStore().GetByKey(cacheKey(p.NamespacedName)); err == nil && exists {
		w.metrics.markPending(w.item(p.NamespacedName))
		w.queue.Add(p.NamespacedName)
	}
}
