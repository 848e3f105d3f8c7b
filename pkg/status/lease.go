package status

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	// leaseDuration is how long a writer that vanished keeps the others waiting.
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// lead waits for the Lease and calls work with a context that ends with the
// leadership or with ctx. The Lease is given up only after work has returned, so
// that there are never two writers.
func (w *Writer) lead(ctx context.Context, work func(context.Context)) error {
	electing, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	started := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: LeaseName,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: w.cfg.LeaseNamespace, Name: LeaseName},
			Client:     w.cfg.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: w.cfg.Identity},
		},
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
		elector.Run(electing)
	}()
	select {
	case <-ctx.Done():
	case leading := <-started:
		working, stop := context.WithCancel(leading)
		detach := context.AfterFunc(ctx, stop)
		work(working)
		detach()
		stop()
	}
	release()
	<-ended
	return nil
}
