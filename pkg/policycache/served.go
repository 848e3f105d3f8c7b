package policycache

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// absentPause is how long a kind that is not served is left alone before it
	// is asked for again. With the delay before a list that follows a list, what has
	// appeared is in force within ten seconds.
	absentPause = 7 * time.Second
	// A server that says that it does not serve a kind of which objects are
	// known is believed when it has said so this often in a row, with these
	// pauses: for half a minute. It may be starting, or be another server.
	doubts     = 11
	doubtPause = 3 * time.Second
)

// waitUntilServed makes lw yield nothing, rather than fail, while the server
// does not serve its kind: while no CustomResourceDefinition is installed.
// known reports whether objects of the kind are known, which are not given up at
// the first such answer. A server deletes them before it removes a definition,
// and mostly says so; it may also end the watch first. Every other failure
// remains one.
//
// The result is for one Reflector, which lists and watches in turn.
func waitUntilServed(lw cache.ListerWatcher, kind string, known func() bool, served prometheus.Gauge) cache.ListerWatcher {
	o := &optional{inner: cache.ToListerWatcherWithContext(lw), kind: kind, known: known, served: served}
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc:  o.list,
		WatchFuncWithContext: o.watch,
	}, o)
}

// optional is a kind that the server may not serve.
type optional struct {
	inner  cache.ListerWatcherWithContext
	kind   string
	known  func() bool
	served prometheus.Gauge
	absent bool // the last list was made up
}

// IsWatchListSemanticsUnSupported keeps Reflectors from streaming lists: it is a
// list that shows whether the kind is served.
func (*optional) IsWatchListSemanticsUnSupported() bool { return true }

// list returns what the server lists, and no objects where it does not serve
// the kind.
func (o *optional) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	for asked := 1; ; asked++ {
		list, err := o.inner.ListWithContext(ctx, opts)
		switch {
		case err == nil:
			o.isServed(ctx)
			return list, nil
		case !apierrors.IsNotFound(err):
			return nil, err
		case asked == doubts || !o.known():
			o.isAbsent(ctx)
			return &metav1.List{}, nil
		case asked == 1:
			o.isDoubted(ctx, err)
		}
		select {
		case <-time.After(doubtPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// watch follows a list of the server's. After one that was made up it reports
// nothing, and expires as soon as the server can be asked for another.
func (o *optional) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	if !o.absent {
		return o.inner.WatchWithContext(ctx, opts)
	}
	if _, err := o.inner.ListWithContext(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return quietWatch(absentPause), nil
	}
	return nil, apierrors.NewResourceExpired(o.kind + " is served now")
}

// quietWatch reports nothing and ends after a while.
func quietWatch(d time.Duration) watch.Interface {
	events := make(chan watch.Event)
	time.AfterFunc(d, func() { close(events) })
	return watch.NewProxyWatcher(events)
}

func (o *optional) isServed(ctx context.Context) {
	o.served.Set(1)
	if o.absent {
		o.absent = false
		klog.FromContext(ctx).Info("Kind is served", "kind", o.kind)
	}
}

func (o *optional) isAbsent(ctx context.Context) {
	o.served.Set(0)
	if !o.absent {
		o.absent = true
		klog.FromContext(ctx).Info("Kind is not served; its policies will be in force once it is installed", "kind", o.kind)
	}
}

func (o *optional) isDoubted(ctx context.Context, err error) {
	o.served.Set(0)
	klog.FromContext(ctx).Error(err, "Kind is no longer served; its policies stay in force for half a minute", "kind", o.kind)
}
