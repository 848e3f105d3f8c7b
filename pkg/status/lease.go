package status

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

const (
	// leaseDuration is how long other writers wait after the leader has crashed.
	leaseDuration = 15 * time.Second
	// renewDeadline is how long the leader tries to renew the Lease, and then again to
	// release it (leaderelection's release), before its leadership ends. Twice this plus
	// retryPeriod is less than leaseDuration, so no other writer leads before that.
	renewDeadline = 6 * time.Second
	retryPeriod   = 2 * time.Second
)

// loggingLock logs why the Lease cannot be acquired or renewed, at a limited rate.
type loggingLock struct {
	w      *Writer
	logger klog.Logger
	resourcelock.Interface
}

// Get implements resourcelock.Interface.
func (l loggingLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	l.log(ctx, err)
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l loggingLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Create(ctx, r)
	l.log(ctx, err)
	return err
}

// Update implements resourcelock.Interface.
func (l loggingLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Update(ctx, r)
	l.log(ctx, err)
	return err
}

// log ignores errors that are normal in an election: there is no Lease yet, or another writer
// was faster.
func (l loggingLock) log(ctx context.Context, err error) {
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		l.w.logError(klog.NewContext(ctx, l.logger), err, "Cannot use the lease; retrying", "lease", l.Describe())
	}
}

// lead waits for the Lease and calls work with a context that ends with the leadership or
// with ctx. It releases the Lease only after work has returned, so that there are never two
// writers.
func (w *Writer) lead(ctx context.Context, work func(context.Context)) error {
	electing, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	started := make(chan context.Context, 1)
	logger := klog.FromContext(ctx)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: LeaseName,
		Lock: loggingLock{w, logger, &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: w.cfg.LeaseNamespace, Name: LeaseName},
			Client:     w.cfg.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: w.cfg.Identity},
		}},
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) { started <- leading },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("elect by lease %s/%s: %w", w.cfg.LeaseNamespace, LeaseName, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(klog.NewContext(electing, klog.Logger{})) // without a logger: it would log each attempt
	}()
	logger.Info("Waiting for the lease", "lease", klog.KRef(w.cfg.LeaseNamespace, LeaseName), "identity", w.cfg.Identity)
	select {
	case <-ctx.Done():
	case leading := <-started:
		working, stop := context.WithCancel(klog.NewContext(leading, logger))
		detach := context.AfterFunc(ctx, stop)
		work(working)
		detach()
		stop()
	}
	release()
	<-ended
	return nil
}
