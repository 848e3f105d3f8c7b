package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/podwatch"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/tests/speed/scale/model"
)

const (
	// startAtOnce is how many agents list at the same time.
	startAtOnce = 16
	// watchFor is the average duration of a watch in seconds. Reflectors ask for five to ten
	// minutes.
	watchFor = 450
)

// fleet is many agents.
type fleet struct {
	config  *rest.Config
	running sync.WaitGroup

	watches, pods    atomic.Int64 // all watches, and those of pods
	listedPods       atomic.Int64
	events, versions atomic.Int64 // versions are of events and of bookmarks
	bytes            atomic.Int64 // of bodies of responses
	failed           atomic.Int64 // watches
}

func newFleet(config *rest.Config) *fleet {
	f := &fleet{config: rest.CopyConfig(config)}
	f.config.WrapTransport = func(inner http.RoundTripper) http.RoundTripper { return counted{inner, &f.bytes} }
	return f
}

// wait waits until all watches have ended.
func (f *fleet) wait() { f.running.Wait() }

// start starts the watches of an agent, which run until ctx ends. It returns when all lists are
// complete, or with an error when limited ends. If from is not empty, nothing is listed and
// changes are watched from this version on.
func (f *fleet) start(ctx, limited context.Context, node int, pods []model.Watch, from string) error {
	source, err := clusterwatch.Connect(f.config)
	if err != nil {
		return err
	}
	watches := []*receiver{
		f.receive("namespaces", source.Objects(compile.KindNamespace)),
		f.receive("policies", source.Objects(compile.Kinds[0])),
		f.receive("node", source.Node(model.NodeName(node))),
	}
	for _, w := range pods {
		r := f.receive(w.String(), source.Pods(w.PodQuery))
		r.ofPods = true
		watches = append(watches, r)
	}
	f.pods.Add(int64(len(pods)))
	f.watches.Add(int64(len(watches)))
	random := rand.New(rand.NewPCG(1, uint64(node)))
	for _, r := range watches {
		r.from, r.first = from, 2+random.Int64N(watchFor)
		f.running.Go(func() { r.run(ctx) })
	}
	for _, r := range watches {
		select {
		case <-r.listed:
		case <-limited.Done():
			return fmt.Errorf("%s are not listed: %w", r.name, limited.Err())
		}
	}
	return nil
}

// receiver counts what a Reflector receives, as its store.
type receiver struct {
	*fleet
	name   string
	source cache.ListerWatcher
	ofPods bool
	from   string // the version to watch from, empty if there is a list first
	first  int64  // how long the first watch lasts, in seconds
	once   sync.Once
	listed chan struct{}
}

func (f *fleet) receive(name string, source cache.ListerWatcher) *receiver {
	return &receiver{fleet: f, name: name, source: source, listed: make(chan struct{})}
}

// run follows the source until ctx ends. The first watch ends at a random time within
// watchFor, so that the rate of new watches is constant from the start.
func (r *receiver) run(ctx context.Context) {
	inner := cache.ToListerWatcherWithContext(r.source)
	started := false
	var client any = r.source
	if r.from != "" {
		client = noWatchLists{}
	}
	silent := logr.Discard()
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if r.from != "" {
				return &podwatch.List{ListMeta: metav1.ListMeta{ResourceVersion: r.from}}, nil
			}
			list, err := inner.ListWithContext(ctx, o)
			r.note(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if !started {
				o.TimeoutSeconds, started = &r.first, true
			}
			w, err := inner.WatchWithContext(ctx, o)
			r.note(ctx, err)
			if err == nil && r.from != "" {
				r.begun()
			}
			return w, err
		},
	}, client), nil, r, cache.ReflectorOptions{Name: r.name, TypeDescription: r.name, Logger: &silent}).RunWithContext(ctx)
}

// noWatchLists is a client without streamed lists.
type noWatchLists struct{}

func (noWatchLists) IsWatchListSemanticsUnSupported() bool { return true }

func (r *receiver) note(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		r.failed.Add(1)
	}
}

// Add counts an event.
func (r *receiver) Add(any) error {
	r.events.Add(1)
	return nil
}

// Update counts an event.
func (r *receiver) Update(o any) error { return r.Add(o) }

// Delete counts an event.
func (r *receiver) Delete(o any) error { return r.Add(o) }

// UpdateResourceVersion is called for events and for bookmarks.
func (r *receiver) UpdateResourceVersion(string) { r.versions.Add(1) }

// Replace counts a list.
func (r *receiver) Replace(list []any, _ string) error {
	if r.ofPods {
		r.listedPods.Add(int64(len(list)))
	}
	if r.from == "" {
		r.begun()
	}
	return nil
}

// begun records that there was a list, or that a watch runs without one.
func (r *receiver) begun() { r.once.Do(func() { close(r.listed) }) }

// Resync does nothing.
func (r *receiver) Resync() error { return nil }

// counted counts the bytes of responses.
type counted struct {
	inner http.RoundTripper
	bytes *atomic.Int64
}

func (c counted) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.inner.RoundTrip(request)
	if err == nil {
		response.Body = countedBody{response.Body, c.bytes}
	}
	return response, err
}

type countedBody struct {
	io.ReadCloser
	bytes *atomic.Int64
}

func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes.Add(int64(n))
	return n, err
}
