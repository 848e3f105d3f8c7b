package policycache

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// failureLogInterval is the least time between two lines of log about a server
// that goes on failing.
const failureLogInterval = time.Minute

// of counts and logs the lists and watches that lw refuses. An
// informer's own error handler would not do: a server that cannot be reached
// for a watch is retried without a log message, for hours if need be. It is not a failure that
// an optional kind is not served; waitUntilServed reports it.
func (f *failures) of(lw cache.ListerWatcher) cache.ListerWatcher {
	inner := cache.ToListerWatcherWithContext(lw)
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := inner.ListWithContext(ctx, o)
			f.note(ctx, "list", err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := inner.WatchWithContext(ctx, o)
			if o.SendInitialEvents != nil && apierrors.IsInvalid(err) {
				return w, err // a server from before streamed lists; it is listed instead
			}
			f.note(ctx, "watch", err)
			return w, err
		},
	}, lw)
}

// failures reports one kind's lists and watches as they fail and recover.
type failures struct {
	kind     string
	optional bool
	count    prometheus.Counter

	mu     sync.Mutex
	failed int       // since the last success
	last   error     // the last one, nil after a success
	logged time.Time // when failures were last logged, zero since a success
}

func (f *failures) note(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil {
		return
	}
	logger := klog.FromContext(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		if !f.logged.IsZero() {
			logger.Info("Objects readable again", "kind", f.kind, "failures", f.failed)
		}
		f.failed, f.last, f.logged = 0, nil, time.Time{}
		return
	case f.optional && apierrors.IsNotFound(err):
		return
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
		f.count.Inc()
		logger.V(2).Info("Watch expired, listing objects again", "kind", f.kind, "err", err)
		return
	}
	f.count.Inc()
	f.failed, f.last = f.failed+1, err
	if f.logged.IsZero() || time.Since(f.logged) >= failureLogInterval {
		f.logged = time.Now()
		logger.Error(err, "Objects cannot be read; the last known state stays in force", "kind", f.kind, "verb", verb, "failures", f.failed)
	}
}

// notListed says that the objects have not been listed, and why as far as it is known.
func (f *failures) notListed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil {
		return fmt.Errorf("not listed yet: %s", f.kind)
	}
	return fmt.Errorf("not listed yet: %s: %w", f.kind, f.last)
}

// forbidden reports whether the right to read the objects was missing the last time.
func (f *failures) forbidden() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return apierrors.IsForbidden(f.last)
}
