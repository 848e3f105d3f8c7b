package status

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// namespacesPatience is how long conditions wait for the first list of namespaces. A writer
// without the right to list them writes the conditions that follow from policies alone.
const namespacesPatience = 10 * time.Second

// namespaces follows the annotations of namespaces, which say whether their policies are
// enforced.
type namespaces struct {
	writer   *Writer
	informer cache.SharedIndexInformer

	mu      sync.Mutex
	writers map[*kindWriter]struct{} // of kinds that have namespaces
}

// newNamespaces returns nil if no policy may be audited.
func (w *Writer) newNamespaces() *namespaces {
	if w.cfg.Audited == nil {
		return nil
	}
	resource := corev1.SchemeGroupVersion.WithResource("namespaces")
	return &namespaces{
		writer:   w,
		informer: dynamicinformer.NewFilteredDynamicInformer(w.cfg.Dynamic, resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer(),
		writers:  make(map[*kindWriter]struct{}),
	}
}

// run follows the namespaces until ctx ends.
func (n *namespaces) run(ctx context.Context) {
	// These return errors only for an informer that has started.
	_ = n.informer.SetTransform(stripTo(n.writer.cfg.Enforcement))
	_ = n.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		n.writer.logError(ctx, err, "Cannot read namespaces; retrying. Policies that are audited by the annotation of their namespace are reported as enforced")
	})
	annotation := n.writer.cfg.Enforcement
	_, _ = n.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { n.changed(o) },
		UpdateFunc: func(old, o any) {
			if old.(metav1.Object).GetAnnotations()[annotation] != o.(metav1.Object).GetAnnotations()[annotation] {
				n.changed(o)
			}
		},
	})
	n.informer.RunWithContext(ctx)
}

// wait returns when the namespaces are known, or cannot be read.
func (n *namespaces) wait(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, namespacesPatience)
	defer cancel()
	cache.WaitForCacheSync(ctx.Done(), n.informer.HasSynced)
}

// follow has changes queue the policies of w, until the returned function is called.
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
				w.enqueue(policy)
			}
		}
	}
}

// get returns the namespace of that name, nil if it is not known.
func (n *namespaces) get(name string) metav1.Object {
	obj, ok, err := n.informer.GetStore().GetByKey(name)
	if err != nil || !ok {
		return nil
	}
	o, _ := obj.(metav1.Object)
	return o
}

// audits reports whether the policy o is evaluated and not enforced.
func (w *kindWriter) audits(o *unstructured.Unstructured) bool {
	if w.spaces == nil {
		return false
	}
	var namespace metav1.Object
	if o.GetNamespace() != "" {
		namespace = w.spaces.get(o.GetNamespace())
	}
	return w.cfg.Audited(o, namespace)
}
