// Package policycache keeps a node's view of its cluster and turns every change
// of it into a compiled snapshot: informers, coalesce, compile, publish. It
// owns what is held of each object and when a compile is due. It knows nothing
// of what policies mean, which is pkg/compile's, nor of what is done with a
// snapshot.
//
// Objects come from a Source, an API server or a directory of manifests, and go
// through the same informers. A watch that breaks and a list that is made again
// change only what has changed: until the server says that an object is gone,
// it stays in every snapshot.
package policycache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/runner"
)

// Source is where objects come from.
type Source interface {
	Namespaces() cache.ListerWatcher
	NetworkPolicies() cache.ListerWatcher
	Pods() cache.ListerWatcher
	// Node yields the one node of that name.
	Node(name string) cache.ListerWatcher
	// Run serves the ListerWatchers until ctx ends. They may be used before,
	// and may wait for it.
	Run(ctx context.Context) error
}

// Config is what a Cache needs to know besides its Source.
type Config struct {
	// NodeName is the name of the node whose view is kept, as in spec.nodeName
	// of its pods.
	NodeName string
	// Features are handed on to every compile.
	Features compile.Features
	// MinInterval is the least time between the starts of two compiles; changes
	// within it share one. The first change after a quiet time does not wait.
	// Zero compiles at every change.
	MinInterval time.Duration
	// Registerer takes the metrics.
	Registerer prometheus.Registerer
}

// Validate names every field that cannot work.
func (c Config) Validate() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("NodeName is empty"))
	}
	if c.MinInterval < 0 {
		errs = append(errs, errors.New("MinInterval is negative"))
	}
	if c.Registerer == nil {
		errs = append(errs, errors.New("Registerer is nil"))
	}
	return errors.Join(errs...)
}

// Publish takes a new snapshot into force. since is when the oldest of the
// changes in it was seen. It is called from one goroutine, and the next
// snapshot waits for its return. ctx ends with the Cache.
type Publish func(ctx context.Context, s *policy.Snapshot, since time.Time)

// Cache publishes a snapshot for every change of its Source.
type Cache struct {
	cfg     Config
	source  Source
	compile func(compile.Input) *policy.Snapshot
	publish Publish
	metrics *metrics
	runner  *runner.Runner

	namespaces, policies, pods, nodes *informer

	mu    sync.Mutex
	since time.Time // the first change that is in no snapshot yet, or zero
}

// New returns a Cache of source that hands its snapshots to publish. It starts
// nothing. An error names what is wrong with cfg.
func New(source Source, cfg Config, publish Publish) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("policy cache: %w", err)
	}
	c := &Cache{
		cfg:     cfg,
		source:  source,
		compile: compile.Compile,
		publish: publish,
		metrics: newMetrics(cfg.Registerer),
	}
	// A sync has no error, so the retry is never used.
	c.runner = runner.New(runner.Config{MinInterval: cfg.MinInterval, RetryInterval: time.Minute}, c.sync)
	labels := newPool(equalLabels)
	ports := newPool(equalPorts)
	c.namespaces = newInformer(c, kindNamespace, source.Namespaces(), stripNamespace(labels))
	c.policies = newInformer(c, kindNetworkPolicy, source.NetworkPolicies(), stripNetworkPolicy)
	c.pods = newInformer(c, kindPod, source.Pods(), stripPod(labels, ports))
	c.nodes = newInformer(c, kindNode, source.Node(cfg.NodeName), stripNode)
	return c, nil
}

// Run keeps the view until ctx ends, or until the Source fails, which is the
// only error. The first snapshot is published when all kinds are there. On
// return nothing of the Cache runs any more.
func (c *Cache) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "policycache"))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.source.Run(ctx) })
	var synced []cache.DoneChecker
	for _, i := range []*informer{c.namespaces, c.policies, c.nodes, c.pods} {
		synced = append(synced, i.handled)
		group.Go(func() error {
			i.shared.RunWithContext(ctx)
			return nil
		})
	}
	group.Go(func() error {
		for _, s := range synced {
			select {
			case <-s.Done():
			case <-ctx.Done():
				return nil
			}
		}
		klog.FromContext(ctx).Info("First lists are there")
		c.changed() // an empty cluster has a snapshot, too
		c.runner.Run(ctx)
		return nil
	})
	return group.Wait()
}

// changed notes that the stores hold something new. They must hold it before.
func (c *Cache) changed() {
	c.mu.Lock()
	if c.since.IsZero() {
		c.since = time.Now()
	}
	c.mu.Unlock()
	c.runner.Poke()
}

// takeSince returns the time of the first change that is in no snapshot yet, and
// forgets it.
func (c *Cache) takeSince() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := c.since
	c.since = time.Time{}
	return since
}

// sync compiles what the stores hold and publishes it.
func (c *Cache) sync(ctx context.Context) error {
	// Taken before the stores are read: a change that comes in between is in
	// this snapshot and leads to another, never the other way round.
	since := c.takeSince()
	if since.IsZero() {
		return nil // the run before has met the change that poked for this one
	}
	start := time.Now()
	in := c.input()
	snapshot := c.compile(in)
	took := time.Since(start)
	c.metrics.compiled(in, start, took)
	klog.FromContext(ctx).V(2).Info("Snapshot compiled", "took", took, "pods", len(in.Pods), "networkPolicies", len(in.NetworkPolicies))
	c.publish(ctx, snapshot, since)
	return nil
}

func (c *Cache) input() compile.Input {
	return compile.Input{
		NodeName:        c.cfg.NodeName,
		Features:        c.cfg.Features,
		Namespaces:      list[*corev1.Namespace](c.namespaces),
		Pods:            list[*corev1.Pod](c.pods),
		Nodes:           list[*corev1.Node](c.nodes),
		NetworkPolicies: list[*networkingv1.NetworkPolicy](c.policies),
	}
}
