package status

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
)

// namespacesPatience is how long conditions wait for the first list of namespaces. A writer
// without the right to list them writes only conditions that do not depend on namespaces.
const namespacesPatience = 10 * time.Second

// namespaces watches the annotations of namespaces, which decide whether their policies are
// enforced.
type namespaces struct {
	writer   *Writer
	informer cache.SharedIndexInformer

	deletions deletions

	mu      sync.Mutex
	writers map[*kindWriter]struct{} // of namespaced kinds
}

// newNamespaces returns nil if no policy may be audited.
func (w *Writer) newNamespaces() *namespaces {
	if w.cfg.Audited == nil {
		return nil
	}
	resource := corev1.SchemeGroupVersion.WithResource("namespaces")
	return &namespaces{
		writer:   w,
		informer: newInformer(w.cfg.Dynamic.Resource(resource), 0),
		writers:  make(map[*kindWriter]struct{}),
	}
}

// run watches namespaces until ctx ends.
func (n *namespaces) run(ctx context.Context) {
	// These return errors only for an informer that has started.
	_ = n.informer.SetTransform(stripTo(n.writer.cfg.Annotations))
	_ = n.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		n.writer.logError(ctx, err, "Cannot read namespaces; retrying. Policies that are audited by the annotation of their namespace are reported as enforced")
	})
	_, _ = n.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { n.changed(o) },
		UpdateFunc: func(old, o any) {
			if !maps.Equal(old.(metav1.Object).GetAnnotations(), o.(metav1.Object).GetAnnotations()) {
				n.changed(o)
			}
		},
		DeleteFunc: n.deletions.note,
	})
	n.informer.RunWithContext(ctx)
}

// wait blocks until the namespaces are listed, or cannot be read.
func (n *namespaces) wait(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, namespacesPatience)
	defer cancel()
	cache.WaitForCacheSync(ctx.Done(), n.informer.HasSynced)
}

// follow makes changes of a namespace queue the policies of w, until the returned function is
// called.
func (n *namespaces) follow(w *kindWriter) (end func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.writers[w] = struct{}{}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.writers, w)
	}
}

// changed queues the policies of a namespace.
func (n *namespaces) changed(obj any) {
	o, ok := obj.(metav1.Object)
	if !ok {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.writers {
		for _, policy := range w.informer.GetStore().List() {
			if p, ok := policy.(metav1.Object); ok && p.GetNamespace() == o.GetName() {
				w.enqueue(policy, false)
			}
		}
	}
}

// get returns the namespace with this name, nil if it is unknown.
func (n *namespaces) get(name string) metav1.Object {
	obj, ok, err := n.informer.GetStore().GetByKey(name)
	if err != nil || !ok {
		return nil
	}
	o, _ := obj.(metav1.Object)
	return o
}

// audits reports whether the policy o is evaluated but not enforced.
func (w *kindWriter) audits(o *unstructured.Unstructured) bool {
	return w.spaces != nil && w.cfg.Audited(o, w.namespaceOf(o))
}

// namespaceOf returns the namespace of the policy o, nil if it is not known.
func (w *kindWriter) namespaceOf(o *unstructured.Unstructured) metav1.Object {
	if w.spaces == nil || o.GetNamespace() == "" {
		return nil
	}
	return w.spaces.get(o.GetNamespace())
}
