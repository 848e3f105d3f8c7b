// Package holder knows which status writer holds the Lease, and with it who may ask this agent. It
// owns when the Lease is read, and knows neither what is asked nor how a writer proves its key.
package holder

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
)

const (
	// fresh is how long the holder is known without reading again. A former writer is refused as
	// soon as its successor asks, so this only bounds the time until then: 5,000 agents read 17
	// times a second.
	fresh = 5 * time.Minute
	// withoutServer is how long the holder is known while the API server does not answer: a writer
	// can still learn that the node is cut off.
	withoutServer = time.Hour
	// readTimeout is less than the five seconds of a handshake.
	readTimeout = 3 * time.Second
)

// ErrNotHolder is the error for a client that is not the writer that holds the Lease.
var ErrNotHolder = errors.New("the client is not the status writer that holds the Lease")

// Leases reads Leases of the namespace of the status writer.
type Leases interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error)
}

// Holder is the holder of the Lease. Its methods may be called from any goroutine.
type Holder struct {
	leases   Leases
	logger   klog.Logger
	errorLog rate.Sometimes

	reading chan struct{} // held by the one that reads the Lease

	mu       sync.Mutex
	identity string
	read     time.Time // when identity was read
	tried    time.Time // when it was last tried
}

// New returns a Holder that reads the Lease of the status writer among leases. It starts nothing.
func New(leases Leases, logger klog.Logger) *Holder {
	return &Holder{leases: leases, logger: logger, errorLog: rate.Sometimes{First: 1, Interval: time.Minute}, reading: make(chan struct{}, 1)}
}

// Check returns nil if a certificate has the key that the Lease names, for Client of
// httpserver.Access. It reads the Lease if the key is unknown.
func (h *Holder) Check(ctx context.Context, c *x509.Certificate) error {
	return h.check(ctx, tlskey.Of(c))
}

// Named reports whether a server name has the key that the Lease names, for Named of httpserver.Access.
func (h *Holder) Named(ctx context.Context, serverName string) bool {
	key, ok := tlskey.InServerName(serverName)
	return ok && h.check(ctx, key) == nil
}

func (h *Holder) check(ctx context.Context, key tlskey.Key) error {
	if h.holds(key, fresh) {
		return nil
	}
	select {
	case h.reading <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-h.reading }()
	h.update(ctx)
	if h.holds(key, withoutServer) {
		return nil
	}
	return ErrNotHolder
}

// holds reports whether the Lease named a key when it was read, less than age ago.
func (h *Holder) holds(key tlskey.Key, age time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return key.Holds(h.identity) && time.Since(h.read) < age
}

// update reads the Lease, unless that was tried a moment ago: any client may present an unknown key. A
// new writer is known after bounds.LeaseInterval at the latest. The caller holds h.reading.
func (h *Holder) update(ctx context.Context) {
	h.mu.Lock()
	wait := !h.tried.IsZero() && time.Since(h.tried) < bounds.LeaseInterval
	if !wait {
		h.tried = time.Now()
	}
	h.mu.Unlock()
	if wait {
		return
	}
	// A client that hangs up must not keep others from knowing the holder.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	identity, err := h.get(ctx)
	if err != nil {
		h.errorLog.Do(func() { h.logger.Error(err, "It is not known which status writer may ask this agent") })
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.identity, h.read = identity, time.Now()
}

// get returns the identity of the holder, empty if there is none.
func (h *Holder) get(ctx context.Context) (string, error) {
	lease, err := h.leases.Get(ctx, tlskey.Lease, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read lease %s: %w", tlskey.Lease, err)
	case lease.Spec.HolderIdentity == nil:
		return "", nil
	}
	return *lease.Spec.HolderIdentity, nil
}
