package clusterwatch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// mirror keeps the objects of one kind in the Cluster in line with its Reflector. It is the
// Reflector's store but does not store objects itself: an informer would hold every object a
// second time.
type mirror struct {
	cache    *Cache
	kind     *compile.Kind
	source   cache.ListerWatcher
	strip    stripFunc
	failures *failures

	first  sync.Once
	listed chan struct{} // closed when the first list is in the Cluster

	// These need the Cache's mutex.
	objects  map[[2]string]any // by namespace and name; empty for pods, which the Cluster indexes
	version  string            // the newest resource version that was seen
	reported string            // the version in the last Contents

	// These are used by the Reflector only.
	logger    klog.Logger
	watching  watch.Interface // nil if nothing is being watched
	streaming bool            // the watch begins with a list
	older     time.Time       // since when lists return older versions, zero if they do not
}

// newMirror returns a mirror of lw. Custom resources need not be served.
func newMirror(c *Cache, kind *compile.Kind, lw cache.ListerWatcher, strip stripFunc) *mirror {
	m := &mirror{
		cache:   c,
		kind:    kind,
		strip:   strip,
		listed:  make(chan struct{}),
		objects: map[[2]string]any{},
	}
	m.failures = &failures{kind: kind.Name, optional: kind.IsCustom(), count: c.metrics.watchErrors.WithLabelValues(kind.Name), failed: c.saveSoon, holds: m.holds}
	m.source = checkVersions(m.failures.observe(lw))
	if m.failures.optional {
		m.source = waitUntilServed(m.source, kind.Name, m.holdsAny, c.metrics.served.WithLabelValues(kind.Name))
	}
	m.source = c.retries.retry(m.source)
	return m
}

// holds says what is in force while the objects cannot be read.
func (m *mirror) holds() string {
	select {
	case <-m.listed:
		return "the last known state stays in force"
	default:
	}
	if m.cache.restored {
		return "the saved state is used until they have been listed"
	}
	return "none has been listed yet"
}

// run follows the source until ctx ends. failures reports errors, so the Reflector's own log
// is discarded, and retries sets the delays.
func (m *mirror) run(ctx context.Context) {
	m.logger = klog.FromContext(ctx)
	silent := logr.Discard()
	cache.NewReflectorWithOptions(m.followed(), nil, m, cache.ReflectorOptions{
		Name:            m.kind.Name,
		TypeDescription: m.kind.Name,
		Logger:          &silent,
		Backoff:         &wait.Backoff{},
	}).RunWithContext(klog.NewContext(ctx, silent))
}

// followed returns the source with m's logger. It records when the kind is watched.
func (m *mirror) followed() cache.ListerWatcher {
	inner := cache.ToListerWatcherWithContext(m.source)
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			m.unwatch()
			return inner.ListWithContext(klog.NewContext(ctx, m.logger), o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			m.unwatch()
			w, err := inner.WatchWithContext(klog.NewContext(ctx, m.logger), o)
			if err != nil {
				return nil, err
			}
			m.watching, m.streaming = w, o.SendInitialEvents != nil
			m.cache.currency.set(m, !m.streaming)
			return w, nil
		},
	}, m.source)
}

// unwatch records that the watch has ended, when the Reflector sends its next request. It
// leaves a watch alone whose list was refused.
func (m *mirror) unwatch() {
	m.cache.currency.set(m, false)
	if m.watching != nil {
		m.watching.Stop()
	}
	m.watching, m.streaming = nil, false
}

// stripped is an object in the form that the Cluster stores.
type stripped struct {
	namespace, name, version string
	object                   any
}

// stripOnce strips o unless it is stripped already.
func (m *mirror) stripOnce(o any) (*stripped, error) {
	switch o := o.(type) {
	case *stripped:
		return o, nil
	case metav1.Object:
		if object, ok := m.strip(o); ok {
			return &stripped{o.GetNamespace(), o.GetName(), o.GetResourceVersion(), object}, nil
		}
	}
	return nil, fmt.Errorf("no object of kind %s: %T", m.kind, o)
}

// Transformer strips the objects of a streamed list, which a Reflector collects before it
// calls Replace.
func (m *mirror) Transformer() cache.TransformFunc {
	return func(o any) (any, error) { return m.stripOnce(o) }
}

// Add adds a new object.
func (m *mirror) Add(o any) error { return m.set(o) }

// Update replaces an object by a newer version.
func (m *mirror) Update(o any) error { return m.set(o) }

func (m *mirror) set(o any) error {
	s, err := m.stripOnce(o)
	if err != nil {
		return err
	}
	m.change(func(v view) int {
		m.version = s.version // the Reflector reports it later, and the snapshot may be compiled before
		if !m.put(v, s) {
			return 0
		}
		return 1
	})
	return nil
}

// change changes objects of the kind in the Cluster.
func (m *mirror) change(f func(view) int) {
	m.cache.change(m.kind, func(v view) int {
		changed := f(v)
		if m.kind == compile.KindNode {
			m.cache.ownNode.note(m.hasOwnNode())
		}
		return changed
	})
}

// hasOwnNode is called with the Cache's mutex held.
func (m *mirror) hasOwnNode() bool {
	_, ok := m.objects[[2]string{"", m.cache.cfg.NodeName}]
	return ok
}

// put is called with the Cache's mutex held.
func (m *mirror) put(v view, s *stripped) (changed bool) {
	if m.kind != compile.KindPod {
		m.objects[[2]string{s.namespace, s.name}] = s.object
	}
	return v.Set(s.object)
}

// Delete forgets an object.
func (m *mirror) Delete(o any) error {
	s, err := m.stripOnce(o)
	if err != nil {
		return err
	}
	m.change(func(v view) int {
		m.version = s.version
		return m.delete(v, s)
	})
	return nil
}

func (m *mirror) delete(v view, s *stripped) int {
	delete(m.objects, [2]string{s.namespace, s.name})
	if !m.remove(v, s) {
		return 0
	}
	return 1
}

func (m *mirror) remove(v view, s *stripped) (changed bool) {
	if m.kind == compile.KindNode && s.name == m.cache.cfg.NodeName && m.cache.cfg.OwnNode != NotLookedAt {
		return false // its ranges stay closed for unknown pods
	}
	return v.Delete(m.kind, s.namespace, s.name)
}

// UpdateResourceVersion records the version of a change, or that there was none up to this
// version.
func (m *mirror) UpdateResourceVersion(version string) {
	m.cache.mu.Lock()
	m.version = version
	m.cache.mu.Unlock()
	m.poke()
}

// poke starts a run that reports the Contents of this version, if none has.
func (m *mirror) poke() {
	m.cache.mu.Lock()
	reported := m.reported == m.version
	m.cache.mu.Unlock()
	if !reported {
		m.cache.runner.Poke()
	}
}

// Replace replaces all objects of the kind by a list, in one step.
func (m *mirror) Replace(list []any, version string) error {
	if err := m.refuse(version); err != nil {
		return err
	}
	all := make([]*stripped, len(list))
	listed := make(map[[2]string]bool, len(list))
	for i, o := range list {
		s, err := m.stripOnce(o)
		if err != nil {
			return err
		}
		all[i], listed[[2]string{s.namespace, s.name}] = s, true
		list[i] = nil // the unstripped object can be freed
	}
	m.change(func(v view) int {
		if order, err := resourceversion.CompareResourceVersion(version, m.version); err == nil && order < 0 {
			m.cache.restores++ // the server's data was restored from a backup
		}
		m.version = version
		changed := m.deleteUnlisted(v, listed)
		for _, s := range all {
			if m.put(v, s) {
				changed++
			}
		}
		return changed + m.cache.use(v, m.kind, true)
	})
	m.poke()
	m.first.Do(func() {
		m.reportPodRanges(all)
		close(m.listed)
	})
	if m.streaming {
		m.cache.currency.set(m, true)
	}
	return nil
}

// deleteUnlisted deletes the objects that a list lacks, and returns how many of them mattered.
func (m *mirror) deleteUnlisted(v view, listed map[[2]string]bool) (changed int) {
	var gone []*stripped
	for namespace, name := range v.Names(m.kind) {
		if !listed[[2]string{namespace, name}] {
			gone = append(gone, &stripped{namespace: namespace, name: name})
		}
	}
	for _, s := range gone {
		changed += m.delete(v, s)
	}
	return changed
}

// reportPodRanges reports the ranges of this node if all contains it.
func (m *mirror) reportPodRanges(all []*stripped) {
	for _, s := range all {
		if n, ok := s.object.(*corev1.Node); ok && n.Name == m.cache.cfg.NodeName && m.cache.cfg.PodRanges != nil {
			m.cache.cfg.PodRanges(compile.NewNode(n).PodRanges)
		}
	}
}

// Resync does nothing: the mirror has no state that could drift from the Cluster.
func (m *mirror) Resync() error { return nil }

func (m *mirror) holdsAny() bool { return m.cache.len(m.kind) > 0 }
