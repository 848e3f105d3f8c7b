package status

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
)

// item is an object of one of the kinds.
type item struct {
	kind string
	types.NamespacedName
}

// Writer stores the conditions of all policies of a cluster. Only the Writer that holds the
// Lease writes.
type Writer struct {
	cfg     Config
	metrics *metrics
	limiter *rate.Limiter
	kinds   *kindWriters
	// errorLog limits the rate of logged errors: while the API server is down, each attempt
	// for each policy fails.
	errorLog rate.Sometimes
}

// New returns a Writer. It starts nothing.
func New(cfg Config) (*Writer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("status config: %w", err)
	}
	w := &Writer{
		cfg:      cfg,
		metrics:  newMetrics(cfg.Registerer),
		kinds:    newKindWriters(),
		limiter:  rate.NewLimiter(writeRate, writeBurst),
		errorLog: rate.Sometimes{First: 1, Interval: time.Minute},
	}
	w.metrics.initialize(cfg.Kinds)
	return w, nil
}

// Run waits for the Lease and writes, until ctx ends. After losing the Lease it
// waits for it again.
func (w *Writer) Run(ctx context.Context) error {
	logger := klog.LoggerWithName(klog.FromContext(ctx), "status")
	ctx = klog.NewContext(ctx, logger)
	for ctx.Err() == nil {
		w.lead(ctx, w.work)
	}
	return nil
}

// work writes until ctx ends.
func (w *Writer) work(ctx context.Context) {
	logger := klog.FromContext(ctx)
	w.metrics.setLeader(true)
	defer w.metrics.setLeader(false)
	logger.Info("Started writing conditions", "fieldManager", FieldManager)
	defer logger.Info("Stopped writing conditions")
	if w.cfg.Enforced != nil {
		w.cfg.Enforced.Begin()
	}
	var all sync.WaitGroup
	spaces := w.newNamespaces()
	if spaces != nil {
		all.Go(func() { spaces.run(ctx) })
	}
	for _, k := range w.cfg.Kinds {
		all.Go(func() { w.runKind(ctx, k, spaces) })
	}
	if w.cfg.Enforced != nil {
		all.Go(func() { w.cfg.Enforced.Run(ctx, w.kinds.enqueue) })
	}
	if w.cfg.Readiness != nil {
		all.Go(func() { w.cfg.Readiness.Run(ctx, func() (map[string]string, error) { return w.versions(spaces) }) })
	}
	if w.cfg.Beside != nil {
		all.Go(func() { w.cfg.Beside(ctx) })
	}
	all.Wait()
}

// wait blocks until the rate limit allows one more write.
func (w *Writer) wait(ctx context.Context) error { return w.limiter.Wait(ctx) }

// kindWriter writes for one kind while the Writer leads and the kind is served.
type kindWriter struct {
	*Writer
	kind     Kind
	spaces   *namespaces
	sinks    *sinks
	events   *eventRecorder
	informer cache.SharedIndexInformer
	queue    workqueue.TypedRateLimitingInterface[types.NamespacedName]

	accepted  *accepted
	deletions deletions

	mu      sync.Mutex
	changed map[types.NamespacedName]time.Time // time of the last change of policies that have not been unchanged for quietTime
}

func (w *Writer) newKindWriter(k Kind, r schema.GroupVersionResource, spaces *namespaces) *kindWriter {
	kw := &kindWriter{
		Writer:   w,
		kind:     k,
		spaces:   spaces,
		sinks:    newSinks(k, w.metrics),
		informer: newInformer(w.cfg.Dynamic.Resource(r), resync),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](minBackoff, maxBackoff)),
		accepted: newAccepted(),
		changed:  make(map[types.NamespacedName]time.Time),
	}
	if !w.cfg.withoutEvents {
		kw.events = newEventRecorder(w)
	}
	return kw
}

// run writes until ctx ends or the server no longer serves the kind.
func (w *kindWriter) run(ctx context.Context) {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	// These return errors only for an informer that has started.
	_ = w.informer.SetTransform(stripTo(w.cfg.Annotations, Annotation, SummaryAnnotation, RemovedAnnotation))
	_ = w.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		if isNoResource(err) {
			leave()
			return
		}
		w.logError(ctx, err, "Cannot read policies; retrying", "kind", w.kind.Name)
	})
	_, _ = w.informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(o any, isInInitialList bool) { w.enqueue(o, !isInInitialList) },
		UpdateFunc: func(_, o any) { w.enqueue(o, true) },
		DeleteFunc: func(o any) {
			w.deletions.note(o)
			w.enqueue(o, false)
		},
	})
	var all sync.WaitGroup
	all.Go(func() { w.informer.RunWithContext(ctx) })
	defer w.kinds.add(w)()
	if w.spaces != nil {
		defer w.spaces.follow(w)()
		w.spaces.wait(ctx)
	}
	if cache.WaitForCacheSync(ctx.Done(), w.informer.HasSynced) {
		for range workers {
			all.Go(func() {
				for w.next(ctx) {
				}
			})
		}
	}
	all.Go(func() {
		due := func(key types.NamespacedName) bool {
			p, err := w.plan(ctx, key)
			return err == nil && p.writes() && p.accepts
		}
		w.accepted.run(ctx, w.wait, due, w.queue.Add)
	})
	<-ctx.Done()
	w.queue.ShutDown()
	w.accepted.queue.ShutDown()
	all.Wait()
	w.metrics.forgetKind(w.kind.Name)
	if w.cfg.Enforced != nil {
		w.cfg.Enforced.ForgetKind(w.kind.Name)
	}
}

// newInformer returns an informer of all objects of a resource.
func newInformer(resource dynamic.NamespaceableResourceInterface, resync time.Duration) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(apiclient.ListWatch(resource, metav1.ListOptions{}), &unstructured.Unstructured{}, resync, cache.Indexers{})
}

// stripTo returns a function that removes the fields that the writer does not use, and all
// annotations but some: those that needed returns of them, if it is not nil, and kept.
func stripTo(needed func(map[string]string) map[string]string, kept ...string) cache.TransformFunc {
	return func(obj any) (any, error) {
		o, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return obj, nil
		}
		o.SetManagedFields(nil)
		annotations := o.GetAnnotations()
		var others map[string]string
		if needed != nil {
			others = needed(annotations)
		}
		maps.DeleteFunc(annotations, func(key, _ string) bool {
			_, isNeeded := others[key]
			return !isNeeded && !slices.Contains(kept, key)
		})
		o.SetAnnotations(annotations)
		return o, nil
	}
}

// enqueue has a policy handled. fresh is set if the writer has just seen it change.
func (w *kindWriter) enqueue(obj any, fresh bool) {
	key, err := cache.DeletionHandlingObjectToName(obj)
	if err != nil {
		return // not an API object
	}
	name := types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
	w.note(obj, fresh)
	w.metrics.markPending(w.item(name))
	w.mu.Lock()
	w.changed[name] = time.Now()
	w.mu.Unlock()
	w.queue.Add(name)
}

// untilQuiet returns how long a policy must stay unchanged until its conditions are written, 0 or less if
// they can be.
func (w *kindWriter) untilQuiet(key types.NamespacedName) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := quietTime - time.Since(w.changed[key])
	if rest <= 0 {
		delete(w.changed, key)
	}
	return rest
}

func (w *kindWriter) item(key types.NamespacedName) item { return item{w.kind.Name, key} }

// next handles one object of the queue and reports whether there may be more.
func (w *kindWriter) next(ctx context.Context) bool {
	key, shutdown := w.queue.Get()
	if shutdown {
		return false
	}
	defer w.queue.Done(key)
	if rest := w.untilQuiet(key); rest > 0 {
		w.queue.AddAfter(key, rest)
		return true
	}
	err := w.sync(ctx, key)
	switch {
	case ctx.Err() != nil:
		return false
	case err == nil:
		w.queue.Forget(key)
	default:
		w.queue.AddRateLimited(key)
		if r := resultOf(err); r == conflict || r == gone {
			klog.FromContext(ctx).V(2).Info("Policy changed during the write; retrying", "kind", w.kind.Name, "policy", key.String())
			break
		}
		w.logError(ctx, err, "Cannot write conditions; retrying", "kind", w.kind.Name, "policy", key.String())
	}
	return true
}

// logError logs at most one error a minute as an error, and further ones at level 2.
func (w *Writer) logError(ctx context.Context, err error, message string, keysAndValues ...any) {
	if ctx.Err() != nil {
		return
	}
	logger := klog.FromContext(ctx)
	logged := false
	w.errorLog.Do(func() {
		logger.Error(err, message, keysAndValues...)
		logged = true
	})
	if !logged {
		logger.V(2).Info(message, slices.Concat(keysAndValues, []any{"err", err})...)
	}
}
