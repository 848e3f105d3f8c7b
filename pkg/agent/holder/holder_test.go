package holder

import (
	"context"
	"crypto/x509"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
)

// leases is an API server with one Lease.
type leases struct {
	typed.LeaseInterface

	mu     sync.Mutex
	holder *string
	err    error
	slow   bool // it answers no request
	reads  int
}

func (l *leases) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	if l.slow {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if l.err != nil {
		return nil, l.err
	}
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: l.holder}}, nil
}

// hold makes a certificate's key the holder, and no key with nil.
func (l *leases) hold(c *x509.Certificate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holder, l.err = nil, nil
	if c != nil {
		identity := tlskey.Of(c).Identity("writer-0")
		l.holder = &identity
	}
}

func (l *leases) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func certificate(key string) *x509.Certificate {
	return &x509.Certificate{RawSubjectPublicKeyInfo: []byte(key)}
}

var first, second, other = certificate("first"), certificate("second"), certificate("other")

func (l *leases) wantReads(t *testing.T, want int) {
	t.Helper()
	if l.reads != want {
		t.Errorf("the Lease was read %d times, want %d", l.reads, want)
	}
}

func want(t *testing.T, h *Holder, c *x509.Certificate, want error) {
	t.Helper()
	if got := h.Check(t.Context(), c); !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", c.RawSubjectPublicKeyInfo, got, want)
	}
}

// Only the key that the Lease names may ask, and the Lease is not read for each question.
func TestHolderMayAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		l.hold(first)
		h := New(l, klog.Background())
		for range 10 {
			want(t, h, first, nil)
			time.Sleep(fresh / 20)
		}
		l.wantReads(t, 1)
		want(t, h, other, ErrNotHolder)
		time.Sleep(fresh)
		want(t, h, first, nil)
		l.wantReads(t, 3)
	})
}

// A server name with the key of the holder is known, and reads the Lease as a key does.
func TestNamesOfTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		l.hold(first)
		h := New(l, klog.Background())
		named := func(c *x509.Certificate) bool { return h.Named(t.Context(), tlskey.ServerName([16]byte{}, c)) }
		if named(second) || !named(first) || h.Named(t.Context(), "agent") || h.Named(t.Context(), "") {
			t.Error("another name than the holder's is known, or its own is not")
		}
		l.hold(second)
		if named(second) {
			t.Error("the Lease is read again at once")
		}
		time.Sleep(bounds.LeaseInterval)
		if !named(second) {
			t.Error("a new holder is not known")
		}
		l.wantReads(t, 2)
	})
}

// A former holder is refused once its successor has asked, or after a time.
func TestFormerHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		l.hold(first)
		h := New(l, klog.Background())
		want(t, h, first, nil)
		time.Sleep(bounds.LeaseInterval)
		l.hold(second)
		want(t, h, second, nil)
		want(t, h, first, ErrNotHolder)
		time.Sleep(bounds.LeaseInterval)
		l.hold(nil)
		want(t, h, second, nil) // not read yet
		time.Sleep(fresh)
		want(t, h, second, ErrNotHolder)
	})
}

// A flood of unknown keys costs one request in bounds.LeaseInterval, and a new writer is known after it.
func TestFloodOfUnknownKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		l.hold(first)
		h := New(l, klog.Background())
		want(t, h, first, nil)
		flood := func(n int) {
			var all sync.WaitGroup
			for range n {
				all.Go(func() { want(t, h, other, ErrNotHolder) })
			}
			all.Wait()
		}
		time.Sleep(bounds.LeaseInterval)
		flood(1000)
		l.wantReads(t, 2)
		want(t, h, first, nil)
		l.hold(second)
		want(t, h, second, ErrNotHolder)
		time.Sleep(bounds.LeaseInterval)
		flood(1000)
		want(t, h, second, nil)
		l.wantReads(t, 3)
	})
}

// While the API server does not answer, the holder stays known for an hour, and no other client is.
func TestWithoutServer(t *testing.T) {
	for name, fault := range map[string]func(*leases){
		"error": func(l *leases) { l.fail(errors.New("no connection")) },
		"right": func(l *leases) {
			l.fail(apierrors.NewForbidden(coordinationv1.Resource("leases"), tlskey.Lease, nil))
		},
		"hangs": func(l *leases) { l.slow = true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &leases{}
				l.hold(first)
				h := New(l, klog.Background())
				want(t, h, first, nil)
				fault(l)
				time.Sleep(withoutServer / 2)
				want(t, h, first, nil)
				want(t, h, other, ErrNotHolder)
				time.Sleep(withoutServer / 2)
				want(t, h, first, ErrNotHolder)
			})
		})
	}
}

// Without a Lease, or with one that no writer holds, no client may ask.
func TestNoWriterHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		h := New(l, klog.Background())
		want(t, h, first, ErrNotHolder)
		l.fail(apierrors.NewNotFound(coordinationv1.Resource("leases"), tlskey.Lease))
		time.Sleep(bounds.LeaseInterval)
		want(t, h, first, ErrNotHolder)
		l.hold(first)
		time.Sleep(bounds.LeaseInterval)
		want(t, h, first, nil)
		l.fail(apierrors.NewNotFound(coordinationv1.Resource("leases"), tlskey.Lease))
		time.Sleep(fresh)
		want(t, h, first, ErrNotHolder)
	})
}

// A client that hangs up does not keep others from knowing the holder.
func TestClientHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		l.hold(first)
		h := New(l, klog.Background())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = h.Check(ctx, other)
		want(t, h, first, nil)
	})
}
