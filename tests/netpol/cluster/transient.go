package cluster

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// mostAttempts is how often a change of the cluster is tried.
const mostAttempts = 3

// isTransient reports whether a request may succeed when it is repeated. client-go has already
// repeated those for which the API server asked.
func isTransient(err error) bool {
	return slices.ContainsFunc([]func(error) bool{
		apierrors.IsConflict, apierrors.IsInternalError, apierrors.IsServiceUnavailable,
		apierrors.IsServerTimeout, apierrors.IsTimeout, apierrors.IsTooManyRequests,
		utilnet.IsConnectionRefused, utilnet.IsConnectionReset, utilnet.IsProbableEOF,
	}, func(is func(error) bool) bool { return is(err) })
}

// repeat calls f again while the API server cannot do something at the moment.
func (b *Backend) repeat(ctx context.Context, f func() error) error {
	err := f()
	for n := 1; n < mostAttempts && isTransient(err) && ctx.Err() == nil; n++ {
		b.countRetry()
		err = f()
	}
	return err
}

func (b *Backend) countRetry() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retries++
}
