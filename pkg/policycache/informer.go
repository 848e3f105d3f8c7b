package policycache

import (
	"context"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// The kinds, as they are named in metrics and logs.
const (
	kindNamespace     = "Namespace"
	kindNetworkPolicy = "NetworkPolicy"
	kindNode          = "Node"
	kindPod           = "Pod"
)

var kinds = []string{kindNamespace, kindNetworkPolicy, kindNode, kindPod}

// informer holds the stripped objects of one kind.
type informer struct {
	shared  cache.SharedIndexInformer
	handled cache.DoneChecker // the first list is in the store and was seen
}

// pointer is a pointer to an API object of struct type S.
type pointer[S any] interface {
	*S
	runtime.Object
	metav1.Object
}

// newInformer returns the informer of what lw yields, reduced by strip to what
// policy needs. It tells c of every change of what is left.
func newInformer[S any, P pointer[S]](c *Cache, kind string, lw cache.ListerWatcher, strip func(P) P) *informer {
	shared := cache.NewSharedIndexInformerWithOptions(
		reportFailures(lw, kind, c.metrics.watchErrors.WithLabelValues(kind)),
		P(new(S)),
		cache.SharedIndexInformerOptions{ObjectDescription: kind},
	)
	changes := c.metrics.changes.WithLabelValues(kind)
	ignored := c.metrics.ignored.WithLabelValues(kind)
	changed := func(any) {
		changes.Inc()
		c.changed()
	}
	registration, err := shared.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed,
		UpdateFunc: func(before, after any) {
			if same[S](before.(P), after.(P)) {
				ignored.Inc()
				return
			}
			changed(after)
		},
		DeleteFunc: changed,
	})
	must(err)
	must(shared.SetTransform(transform(strip)))
	must(shared.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		// What the server answers is reported by reportFailures already.
		klog.FromContext(ctx).V(4).Info("List and watch start over", "kind", kind, "err", err)
	}))
	return &informer{shared: shared, handled: registration.HasSyncedChecker()}
}

// must is for calls that fail only for an informer that has started.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// list returns what the informer holds, in no order.
func list[P any](i *informer) []P {
	objects := i.shared.GetStore().List()
	typed := make([]P, len(objects))
	for n, o := range objects {
		typed[n] = o.(P)
	}
	return typed
}

// transform makes strip fit for an informer.
func transform[P any](strip func(P) P) cache.TransformFunc {
	return func(o any) (any, error) {
		switch o := o.(type) {
		case P:
			return strip(o), nil
		case cache.DeletedFinalStateUnknown:
			if last, ok := o.Obj.(P); ok {
				o.Obj = strip(last)
			}
			return o, nil
		default:
			return o, nil
		}
	}
}

// same reports whether two stripped objects differ in their versions only.
func same[S any, P pointer[S]](a, b P) bool {
	c := *a
	P(&c).SetResourceVersion(b.GetResourceVersion())
	return reflect.DeepEqual(&c, (*S)(b))
}
