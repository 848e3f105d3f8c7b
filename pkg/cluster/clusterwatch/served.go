package clusterwatch

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/served"
)

const (
	// absentPause is the pause before the agent asks again for a kind that is not served.
	// Together with the delay between two lists, a new kind is enforced within ten seconds.
	absentPause = 7 * time.Second
	// absentList is how long the agent only asks for the versions that it reads, until a list
	// checks for other versions too.
	absentList = 10 * time.Minute
	// If objects of a kind are known, a server that reports the kind as not served is
	// believed only after this many reports in a row, with these pauses: half a minute. It
	// may be starting, or be another server.
	doubts     = 11
	doubtPause = 3 * time.Second
)

// waitUntilServed makes lw yield nothing instead of failing while the server does not serve
// its kind, because its CustomResourceDefinition is not installed. known reports whether
// objects of the kind are known; these are not dropped at the first such answer. A server
// deletes objects before it removes their definition and usually reports the deletions, but
// it may end the watch first. Other failures remain failures.
//
// The result serves one Reflector, which never lists and watches at once.
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
	absent bool // the last list was empty because the kind is not served
	listed time.Time
}

// IsWatchListSemanticsUnSupported keeps Reflectors from streaming lists: only a plain list
// shows whether the kind is served.
func (*optional) IsWatchListSemanticsUnSupported() bool { return true }

// list returns the server's list, or an empty one if the kind is not served.
func (o *optional) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	o.listed = time.Now()
	for asked := 1; ; asked++ {
		list, err := o.inner.ListWithContext(ctx, opts)
		switch {
		case err == nil:
			o.isServed(ctx)
			return list, nil
		case !apierrors.IsNotFound(err):
			if errors.As(err, new(*served.OtherVersionsError)) {
				o.served.Set(0)
			}
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

// watch follows a list of the server. If the kind is not served it reports nothing, and
// expires when it is time to list again.
func (o *optional) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	if !o.absent {
		return o.inner.WatchWithContext(ctx, opts)
	}
	if _, err := o.inner.ListWithContext(ctx, metav1.ListOptions{Limit: 1}); err != nil && time.Since(o.listed) < absentList {
		return quietWatch(absentPause), nil
	}
	return nil, apierrors.NewResourceExpired(o.kind + " is to be listed again")
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
		klog.FromContext(ctx).Info("Kind is not served; its objects will be in force once it is installed", "kind", o.kind)
	}
}

func (o *optional) isDoubted(ctx context.Context, err error) {
	o.served.Set(0)
	klog.FromContext(ctx).Error(err, "Kind is no longer served; its objects stay in force for half a minute", "kind", o.kind)
}
