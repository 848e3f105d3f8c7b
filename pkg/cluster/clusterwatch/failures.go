package clusterwatch

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

// failureLogInterval is the least time between two log lines about a server that keeps
// failing.
const failureLogInterval = time.Minute

// observe counts and logs failed lists and watches of lw, and the errors that end watches. An
// informer's error handler does not see all of them: client-go silently retries a watch when
// the server is unreachable or the watch ends with an error, for hours if need be. An
// optional kind that is not served is no failure; waitUntilServed reports it.
func (f *failures) observe(lw cache.ListerWatcher) cache.ListerWatcher {
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
				return w, err // an old server without streamed lists; the Reflector lists instead
			}
			f.note(ctx, "watch", err)
			if err != nil {
				return nil, err
			}
			return f.follow(ctx, w), nil
		},
	}, lw)
}

// followedWatch is a watch whose errors are recorded.
type followedWatch struct {
	watch.Interface
	events chan watch.Event
	stop   context.CancelFunc
}

// follow returns w with its final error recorded.
func (f *failures) follow(ctx context.Context, w watch.Interface) watch.Interface {
	ctx, stop := context.WithCancel(ctx)
	followed := &followedWatch{w, make(chan watch.Event), stop}
	go func() {
		defer close(followed.events)
		for event := range w.ResultChan() {
			if event.Type == watch.Error {
				f.noteEnd(ctx, apierrors.FromObject(event.Object))
			}
			select {
			case followed.events <- event:
			case <-ctx.Done():
				return
			}
		}
	}()
	return followed
}

func (w *followedWatch) ResultChan() <-chan watch.Event { return w.events }

func (w *followedWatch) Stop() {
	w.stop()
	w.Interface.Stop()
}

// failures reports when lists and watches of one kind fail and recover.
type failures struct {
	kind     string
	optional bool
	count    prometheus.Counter
	failed   func()        // called when the server does not answer, or with an error
	holds    func() string // what is in force meanwhile, for logs

	mu     sync.Mutex
	times  int       // of failures since the last success
	last   error     // the last one, nil after a success
	logged time.Time // when failures were last logged, zero since a success
	ended  time.Time // when it was last logged that a watch ended with an error
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
			logger.Info("Objects readable again", "kind", f.kind, "failures", f.times)
		}
		f.times, f.last, f.logged = 0, nil, time.Time{}
		return
	case f.optional && apierrors.IsNotFound(err):
		return
	case isExpired(err):
		f.count.Inc()
		logger.V(2).Info("Watch expired, listing objects again", "kind", f.kind, "err", err)
		return
	}
	f.count.Inc()
	f.times, f.last = f.times+1, err
	if f.logged.IsZero() || time.Since(f.logged) >= failureLogInterval {
		f.logged = time.Now()
		logger.Error(err, "Objects cannot be read; "+f.holds(), "kind", f.kind, "verb", verb, "failures", f.times)
	}
	f.failed()
}

// noteEnd records the error that ended a watch. It has its own log limit: the next watch may
// start, which is a success, and end in the same way.
func (f *failures) noteEnd(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	logger := klog.FromContext(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count.Inc()
	f.last = err
	switch {
	case isExpired(err):
		logger.V(2).Info("Watch expired, listing objects again", "kind", f.kind, "err", err)
	case time.Since(f.ended) >= failureLogInterval:
		f.ended = time.Now()
		logger.Error(err, "Watch ended with an error; "+f.holds(), "kind", f.kind)
	}
}

// isExpired reports whether a watch cannot resume at its resource version.
func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// because returns an error, with the reason if it is known.
func (f *failures) because(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil {
		return fmt.Errorf("%s: %s", what, f.kind)
	}
	return fmt.Errorf("%s: %s: %w", what, f.kind, f.last)
}

// notListed returns an error that the objects have not been listed, and notWatched that they are not watched.
func (f *failures) notListed() error  { return f.because("not listed yet") }
func (f *failures) notWatched() error { return f.because("not watched") }

// forbidden reports whether the last request was forbidden.
func (f *failures) forbidden() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return apierrors.IsForbidden(f.last)
}
