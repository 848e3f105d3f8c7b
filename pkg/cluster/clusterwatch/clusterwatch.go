// Package clusterwatch keeps a node's view of its cluster and compiles every change into a
// snapshot: list and watch, coalesce, compile, publish. It decides which fields of an object
// are kept and when a compile is due. The meaning of policies belongs to pkg/engine/compile,
// the use of snapshots to the callers.
//
// Objects come from a Source: an API server or a directory of manifests. A broken watch or a
// repeated list loses nothing: an object stays in every snapshot until the server reports its
// deletion.
package clusterwatch

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/podwatch"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/statefile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Source lists and watches objects.
type Source interface {
	// Objects yields all objects of a kind. Pods may be left out until they are on a node.
	Objects(kind *compile.Kind) cache.ListerWatcher
	// Node yields the node of this name.
	Node(name string) cache.ListerWatcher
	// Run serves the ListerWatchers until ctx ends. They may be used earlier, but may block
	// until Run is called.
	Run(ctx context.Context) error
}

// Config configures a Cache.
type Config struct {
	// NodeName is the name of the node whose view is kept, as in spec.nodeName
	// of its pods.
	NodeName string
	// Kinds are the enabled kinds of policy, in addition to those that are always enabled.
	// Only these are watched. Any node may be their peer, so all nodes are watched if there
	// is one. The Cache waits for a kind that the Source does not serve without delaying
	// other kinds.
	Kinds []*compile.Kind
	// Features are passed to every compile.
	Features compile.Features
	// Audit and Denial are passed to every compile.
	Audit  bool
	Denial compile.Denial
	// Deferred is that of policy.Model.
	Deferred chan<- *policy.Evaluation
	// MinInterval is the least time between the starts of two compiles for kinds whose
	// objects change often; changes within it share a compile. Changes of other kinds do not
	// wait. Zero compiles at every change.
	MinInterval time.Duration
	// Delay is how long a compile for such a change waits for changes that arrive together.
	// Zero does not wait.
	Delay time.Duration
	// Jitter returns numbers in [0,1) that spread retries. Nil spreads them at random.
	Jitter func() float64
	// Saved keeps the state across restarts: the saved state is enforced until the initial
	// lists have synced. Nil keeps no state.
	Saved *statefile.Cache
	// SavedAfter is how long to wait for the initial lists before the saved state is
	// enforced.
	SavedAfter time.Duration
	// PodRanges is called with the node's pod ranges when the Node has been listed, which may
	// be long before the first snapshot. It may be nil.
	PodRanges func([]netip.Prefix)
	// LeadsElsewhere is passed to every compile. Nil knows no routes.
	LeadsElsewhere func(netip.Addr) bool
	// OwnNode says whether the Node of NodeName must exist. If so, the first snapshot of
	// complete lists waits for it, Healthy fails while it is missing, and a Node that is
	// deleted later stays in snapshots, because its machine still runs its pods.
	OwnNode Presence
	// Contains is called with what the last published snapshot contains: after each Publish, and
	// when later versions have changed nothing in it. It may be nil.
	Contains func(Contents)
	// NodeChanged is called when the Node of NodeName appears or disappears. It may be nil.
	NodeChanged func()
	// Misordered is called after each Publish with the pods of the node with a sandbox that is not
	// believed though it is newer than one that is. It may be nil.
	Misordered func(pods []string)
	// AwaitNamespaces treats a pod whose Namespace has not been seen as unknown, because
	// administrators' policies select by namespace labels.
	AwaitNamespaces bool
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Validate returns an error that names every invalid field.
func (c Config) Validate() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("NodeName is empty"))
	}
	if c.MinInterval < 0 {
		errs = append(errs, errors.New("MinInterval is negative"))
	}
	if c.Delay < 0 {
		errs = append(errs, errors.New("Delay is negative"))
	}
	if c.Registerer == nil {
		errs = append(errs, errors.New("Registerer is nil"))
	}
	return errors.Join(errs...)
}

// Publish applies a new snapshot. since is when its oldest change was seen. listed reports
// whether the snapshot is compiled from complete lists rather than from the saved state. It is
// called from one goroutine, and the next snapshot waits for its return. ctx ends with the
// Cache.
type Publish func(ctx context.Context, s *policy.Snapshot, since time.Time, listed bool)

// calmRate is the number of changes a second of one kind that are compiled without delay.
const calmRate = 100

// view is a *clusterstate.Cluster.
type view interface {
	Set(o any) bool
	SetFeatures(compile.Features)
	Delete(kind *compile.Kind, namespace, name string) bool
	Names(kind *compile.Kind) iter.Seq2[string, string]
	Len(kind *compile.Kind) int
	SetSandboxes(newestFirst []clusterstate.Sandbox) bool
	SetSandboxesOf(node string, newestFirst []clusterstate.Sandbox) bool
	Rerouted() bool
	NodesAt(netip.Addr) []string
	HasNode(name string) bool
	Elsewhere() (pod, node string)
	Pods() iter.Seq[*compile.Pod]
	Conflicts() []clusterstate.Conflict
	Misordered() []string
	Uncertain() []*policy.Endpoint
	Snapshot() *policy.Snapshot
}

// Cache publishes a snapshot for every change of its Source.
type Cache struct {
	cfg      Config
	source   Source
	publish  Publish
	metrics  *metrics
	runner   *runner.Runner
	mirrors  []*mirror
	retries  *retries
	currency *currency
	saving   *saving // nil if nothing is saved
	ownNode  *ownNode

	mu    sync.Mutex
	view  view
	since time.Time // time of the first change that is not in a snapshot yet, or zero
	rates map[*compile.Kind]*runner.Rate
	saved bool // the view is the saved state: no kind has been listed yet
	// restored is set before the mirrors run if a saved state was read.
	restored bool
	// restores counts the lists that were believed although versions had gone back.
	restores int
	// without are the kinds that the agent works without, because it may not read them.
	without map[*compile.Kind]bool

	sandboxes chan struct{} // signals a change of sandboxes

	conflicts   []clusterstate.Conflict // of the last snapshot; used by sync only
	conflictLog *rate.Limiter           // a kubelet can write any number of statuses
}

// New returns a Cache of source that passes its snapshots to publish. It starts nothing. An
// error names the invalid fields of cfg.
func New(source Source, cfg Config, publish Publish) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("policy cache: %w", err)
	}
	if cfg.NodeChanged == nil {
		cfg.NodeChanged = func() {}
	}
	if cfg.Misordered == nil {
		cfg.Misordered = func([]string) {}
	}
	if cfg.Contains == nil {
		cfg.Contains = func(Contents) {}
	}
	jitter := cfg.Jitter
	if jitter == nil {
		jitter = rand.Float64
	}
	c := &Cache{
		cfg:      cfg,
		source:   source,
		publish:  publish,
		retries:  newRetries(jitter),
		currency: newCurrency(),

		rates:     map[*compile.Kind]*runner.Rate{nil: new(runner.Rate)},
		without:   map[*compile.Kind]bool{},
		sandboxes: make(chan struct{}, 1),

		conflictLog: rate.NewLimiter(conflictLogRate, conflictLogBurst),

		view: clusterstate.New(clusterstate.Config{NodeName: cfg.NodeName, AwaitNamespaces: cfg.AwaitNamespaces, LeadsElsewhere: cfg.LeadsElsewhere, Features: cfg.Features, Audit: cfg.Audit, Denial: cfg.Denial, Deferred: cfg.Deferred}),
	}
	kinds := []*compile.Kind{compile.KindNamespace}
	if compile.ReadsCIDRGroups(cfg.Kinds, cfg.Features) {
		kinds = append(kinds, compile.KindCIDRGroup)
	}
	for _, k := range compile.Kinds {
		if k.Enabled(cfg.Kinds) {
			kinds = append(kinds, k)
		}
	}
	kinds = append(kinds, compile.KindNode, compile.KindPod)
	c.ownNode = newOwnNode(cfg.NodeName, cfg.OwnNode, c.nodeNames)
	c.metrics = newMetrics(cfg.Registerer, kinds, c.len, c.currency.age)
	// A sync has no error, so the retry is never used.
	c.runner = runner.New(runner.Config{MinInterval: cfg.MinInterval, Delay: cfg.Delay, RetryInterval: time.Minute}, c.sync)
	if cfg.Saved != nil {
		c.saving = newSaving(cfg.Saved.MaxAge())
	}
	for _, k := range kinds {
		m := c.newMirror(k)
		c.mirrors = append(c.mirrors, m)
		c.currency.add(m)
		c.rates[k] = new(runner.Rate)
	}
	return c, nil
}

// newMirror returns the mirror of the objects of a kind.
func (c *Cache) newMirror(k *compile.Kind) *mirror {
	switch {
	case k == compile.KindNamespace:
		return newMirror(c, k, c.source.Objects(k), stripTyped(stripNamespace))
	case k == compile.KindCIDRGroup:
		return newMirror(c, k, c.source.Objects(k), stripTyped(stripCIDRGroup))
	case k == compile.KindPod:
		return newMirror(c, k, c.source.Objects(k), stripPod(podwatch.NewShared()))
	case k == compile.KindNode && len(c.cfg.Kinds) > 0:
		return newMirror(c, k, c.source.Objects(k), stripTyped(stripPeerNode))
	case k == compile.KindNode:
		return newMirror(c, k, c.source.Node(c.cfg.NodeName), stripTyped(stripNode))
	}
	return newMirror(c, k, c.source.Objects(k), stripPolicy(k))
}

// Run keeps the view until ctx ends, or until the Source fails, which is the only error. The
// first snapshot is that of the saved state, if there is one. The next one is published when
// the initial lists of all kinds have synced and the Node of NodeName is known. All
// goroutines of the Cache have ended when Run returns.
func (c *Cache) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "clusterwatch"))
	restored := c.restore(ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.source.Run(ctx) })
	for _, m := range c.mirrors {
		group.Go(func() error {
			m.run(ctx)
			return nil
		})
	}
	group.Go(func() error {
		c.ownNode.run(ctx, c.cfg.NodeChanged)
		return nil
	})
	listed := make(chan struct{})
	group.Go(func() error {
		if c.waitListed(ctx) {
			close(listed)
		}
		return nil
	})
	group.Go(func() error {
		if restored != nil {
			c.publishSaved(ctx, restored, listed)
		}
		select {
		case <-listed:
		case <-ctx.Done():
			return nil
		}
		klog.FromContext(ctx).Info("Initial lists synced")
		c.metrics.setSource(fromSource)
		c.change(nil, func(view) int { return 1 }) // an empty cluster has a snapshot too
		if c.saving != nil {
			c.saving.changed(compile.KindNamespace) // unlike the saved state, it is current
			group.Go(func() error {
				c.save(ctx)
				return nil
			})
		}
		c.runner.Run(ctx)
		return nil
	})
	return group.Wait()
}

// Healthy returns an error that names unknown objects that policies need, or the error of
// OwnNode.
func (c *Cache) Healthy() error { return errors.Join(c.complete(), c.OwnNode()) }

// OwnNode returns an error if this machine may not be the Node of NodeName: the cluster has
// no such Node, or the machine runs pods of another one.
func (c *Cache) OwnNode() error {
	if err := c.ownNode.healthy(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if pod, node := c.view.Elsewhere(); pod != "" {
		return fmt.Errorf("this machine runs pod %s of Node %q, and no pod of Node %q: --hostname-override must be the name of its Node", pod, node, c.cfg.NodeName)
	}
	return nil
}

// PodRanges returns the ranges of pod addresses of the Node of NodeName, none without it.
func (c *Cache) PodRanges() []netip.Prefix {
	c.mu.Lock()
	defer c.mu.Unlock()
	node, ok := c.nodes().objects[[2]string{"", c.cfg.NodeName}].(*corev1.Node)
	if !ok {
		return nil
	}
	return compile.NewNode(node).PodRanges
}

// change runs f with the lock held and schedules a compile if f changed any objects, whose
// number it returns. kind is their kind, or nil for other changes.
func (c *Cache) change(kind *compile.Kind, f func(view) int) {
	c.mu.Lock()
	changed := f(c.view)
	c.saved = c.saved && kind == nil
	now := time.Now()
	if changed > 0 && c.since.IsZero() {
		c.since = now
	}
	calm := c.rates[kind].Add(now, changed) <= calmRate
	c.mu.Unlock()
	if changed == 0 {
		return
	}
	if calm {
		c.runner.PokeNow()
	} else {
		c.runner.Poke()
	}
	if c.saving != nil && kind != nil {
		c.saving.changed(kind)
	}
}

// SetSandboxes replaces the node's sandboxes of pods, the newest first. It may be called at
// any time, from any goroutine.
func (c *Cache) SetSandboxes(newestFirst []clusterstate.Sandbox) {
	c.change(nil, func(v view) int {
		if v.SetSandboxes(newestFirst) {
			return 1
		}
		return 0
	})
	runner.Signal(c.sandboxes)
}

// Rerouted says that the node's routes may have changed. It may be called at any time, from any goroutine.
func (c *Cache) Rerouted() {
	c.change(nil, func(v view) int {
		if v.Rerouted() {
			return 1
		}
		return 0
	})
}

// SetSandboxesOf replaces the sandboxes that the agent of another node reports, the newest first. It may
// be called at any time, from any goroutine.
func (c *Cache) SetSandboxesOf(node string, newestFirst []clusterstate.Sandbox) {
	c.change(nil, func(v view) int {
		if v.SetSandboxesOf(node, newestFirst) {
			return 1
		}
		return 0
	})
}

// NodesAt returns the other nodes that may have a new pod at an address, see clusterstate.Cluster.
func (c *Cache) NodesAt(addr netip.Addr) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view.NodesAt(addr)
}

// MayBeNode reports whether there may be a node with a name: it has an object that is watched, or a pod.
func (c *Cache) MayBeNode(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view.HasNode(name)
}

func (c *Cache) len(kind *compile.Kind) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view.Len(kind)
}

// sync compiles the Cluster and publishes the snapshot.
func (c *Cache) sync(ctx context.Context) error {
	snapshot, since, duration, contents := c.snapshot()
	if since.IsZero() { // the previous run included the change that triggered this one
		c.cfg.Contains(contents)
		return nil
	}
	klog.FromContext(ctx).V(2).Info("Snapshot compiled", "took", duration, "addresses", snapshot.Len())
	c.publish(ctx, snapshot, since, true)
	c.cfg.Contains(contents)
	c.reportConflicts(ctx)
	c.reportOrder()
	return nil
}

// snapshot compiles the Cluster. since is when the first change after the last snapshot was
// seen, zero if nothing changed. contents are those of s, or of the last snapshot if nothing
// changed.
func (c *Cache) snapshot() (s *policy.Snapshot, since time.Time, duration time.Duration, contents Contents) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, c.since = c.since, time.Time{}
	if since.IsZero() {
		return nil, since, 0, c.contents()
	}
	start := time.Now()
	s = c.view.Snapshot()
	duration = time.Since(start)
	return s, since, duration, c.contents()
}
