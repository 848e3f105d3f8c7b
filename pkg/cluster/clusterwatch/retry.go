package clusterwatch

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

const (
	// retryFirst is the delay before the first retry. It doubles with each further one,
	// up to retryMax, so that an agent is current soon after a long outage.
	retryFirst = 100 * time.Millisecond
	retryMax   = 2 * time.Second
)

// retries is shared by all kinds of a Source: when a request of one kind succeeds after
// failures, the other kinds retry at once.
type retries struct {
	jitter func() float64 // in [0,1)

	mu        sync.Mutex
	succeeded chan struct{} // closed when a request succeeds whose kind had failed
}

func newRetries(jitter func() float64) *retries {
	return &retries{jitter: jitter, succeeded: make(chan struct{})}
}

func (r *retries) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.succeeded)
	r.succeeded = make(chan struct{})
}

func (r *retries) next() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.succeeded
}

// delay returns the wait before the n-th retry, n > 0. It is spread over the upper half of
// its range, so that agents do not retry at the same moment.
func (r *retries) delay(n int) time.Duration {
	d := retryMax
	if n <= 5 { // 1.6 s
		d = retryFirst << (n - 1)
	}
	return d/2 + time.Duration(r.jitter()*float64(d/2))
}

// retried paces the requests of one kind. It does what a Reflector's own delays, which are
// switched off, cannot: it ends a delay when another kind succeeds. It serves one Reflector,
// which never lists and watches at once.
type retried struct {
	inner  cache.ListerWatcherWithContext
	shared *retries

	failed int       // consecutive failures, reset by a watch that lasts
	last   outcome   // of the last request
	sent   time.Time // when the last request was sent
}

// outcome is the result of a request.
type outcome int

const (
	none    outcome = iota // no request, or one that does not count
	refused                // an error
	listed
	watched
)

// retry paces the requests to lw.
func (r *retries) retry(lw cache.ListerWatcher) cache.ListerWatcher {
	k := &retried{inner: cache.ToListerWatcherWithContext(lw), shared: r}
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc:  k.list,
		WatchFuncWithContext: k.watch,
	}, lw)
}

func (k *retried) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.Continue != "" {
		return k.inner.ListWithContext(ctx, o) // the next page of the same list
	}
	return repeat(ctx, k, listed, func() (runtime.Object, error) { return k.inner.ListWithContext(ctx, o) })
}

func (k *retried) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := repeat(ctx, k, watched, func() (watch.Interface, error) { return k.inner.WatchWithContext(ctx, o) })
	if o.SendInitialEvents != nil && apierrors.IsInvalid(err) {
		k.last = none // an old server without streamed lists; the Reflector lists instead
	}
	return w, err
}

// repeat sends a request until it succeeds, or fails with an error that the Reflector must
// handle.
func repeat[R any](ctx context.Context, k *retried, success outcome, request func() (R, error)) (response R, err error) {
	for {
		if err := k.wait(ctx, success); err != nil {
			return response, err
		}
		k.sent = time.Now()
		response, err = request()
		if err == nil {
			if k.last == refused {
				k.shared.wake()
			}
			k.last = success
			return response, nil
		}
		k.last = refused
		k.failed++
		if ctx.Err() != nil || !sameAgain(err) {
			return response, err
		}
	}
}

// wait waits until a request is due.
func (k *retried) wait(ctx context.Context, next outcome) error {
	ago := time.Since(k.sent)
	var succeeded <-chan struct{}
	switch {
	case k.last == none, k.last == listed && next == watched:
		return nil
	case k.last == watched && ago >= retryMax:
		k.failed = 0
		return nil
	case k.last == refused:
		succeeded = k.shared.next()
	default: // the watch ended at once, or a list was not followed by a watch
		k.failed++
	}
	due := time.NewTimer(k.shared.delay(k.failed) - ago)
	defer due.Stop()
	select {
	case <-due.C:
	case <-succeeded:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// sameAgain reports whether the same request may succeed later: the server is unreachable,
// not serving yet, or does not know its users yet. After other errors the Reflector chooses
// another request, such as a list instead of a watch.
func sameAgain(err error) bool {
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
		return true
	}
	return apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err)
}
