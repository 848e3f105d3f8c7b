package status

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
)

const (
	// leaseDuration is how long other writers wait after the leader has crashed.
	leaseDuration = 15 * time.Second
	// renewDeadline is how long a leader leads without a renewal. It is less than leaseDuration, so
	// no other writer leads before that.
	renewDeadline = 12 * time.Second
	retryPeriod   = 2 * time.Second
	releaseTime   = 5 * time.Second
)

// lead waits for the Lease and calls work with a context that ends with the leadership or
// with ctx. It releases the Lease only after work has returned, so that there are never two
// writers.
//
// It does what client-go's leaderelection does, which links the types and clients of all groups of
// Kubernetes.
func (w *Writer) lead(ctx context.Context, work func(context.Context)) {
	e := &election{Writer: w, leases: apiclient.Leases(w.cfg.Leases, w.cfg.LeaseNamespace)}
	klog.FromContext(ctx).Info("Waiting for the lease", "lease", klog.KRef(w.cfg.LeaseNamespace, LeaseName), "identity", w.cfg.Identity)
	for !e.try(ctx) {
		if !sleep(ctx, retryPeriod) {
			return
		}
	}
	working, stop := context.WithCancel(ctx)
	renewing, end := context.WithCancel(context.WithoutCancel(ctx))
	var renewal sync.WaitGroup
	renewal.Go(func() {
		defer stop()
		e.renew(renewing)
	})
	work(working)
	end()
	renewal.Wait()
	e.release(context.WithoutCancel(ctx))
}

// sleep waits, and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// election is what one writer knows about the Lease. It compares no times of different machines.
type election struct {
	*Writer
	leases apiclient.Objects[*coordinationv1.Lease, *coordinationv1.LeaseList]

	mine    *coordinationv1.Lease // as this writer has written it, nil if that may have changed
	renewed time.Time             // when it was sent
	lost    bool                  // another writer held the Lease in the last attempt
	version string                // of the Lease, as read last
	changed time.Time             // when that version was read first
}

// renew returns when ctx ends, or the leadership has.
func (e *election) renew(ctx context.Context) {
	deadline := e.renewed.Add(renewDeadline)
	for !e.lost && sleep(ctx, min(retryPeriod, time.Until(deadline))) && time.Now().Before(deadline) {
		attempt, cancel := context.WithDeadline(ctx, deadline)
		e.try(attempt)
		cancel()
		deadline = e.renewed.Add(renewDeadline)
	}
}

// try writes the Lease unless another writer holds it, and reports whether this one has it now.
func (e *election) try(ctx context.Context) bool {
	lease, err := e.mine, error(nil)
	if lease == nil {
		lease, err = e.leases.Get(ctx, LeaseName, metav1.GetOptions{})
	}
	e.mine, e.lost = nil, err == nil && e.heldByOther(lease)
	if e.lost {
		return false
	}
	sent := time.Now()
	switch {
	case err == nil:
		lease, err = e.leases.Update(ctx, e.claimed(lease), metav1.UpdateOptions{})
	case apierrors.IsNotFound(err):
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.cfg.LeaseNamespace, Name: LeaseName}}
		lease, err = e.leases.Create(ctx, e.claimed(lease), metav1.CreateOptions{})
	}
	if err != nil {
		e.logFailure(ctx, err)
		return false
	}
	e.mine, e.renewed = lease, sent
	return true
}

// heldByOther reports whether another writer holds the Lease, and has renewed it within
// leaseDuration.
func (e *election) heldByOther(lease *coordinationv1.Lease) bool {
	if lease.ResourceVersion != e.version {
		e.version, e.changed = lease.ResourceVersion, time.Now()
	}
	holder := lease.Spec.HolderIdentity
	return holder != nil && *holder != "" && !e.holds(lease) && time.Since(e.changed) < leaseDuration
}

func (e *election) holds(lease *coordinationv1.Lease) bool {
	return lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == e.cfg.Identity
}

// claimed returns the Lease as this writer holds it. Its version makes the server refuse it if
// another writer was faster.
func (e *election) claimed(lease *coordinationv1.Lease) *coordinationv1.Lease {
	now, seconds := metav1.NowMicro(), int32(leaseDuration/time.Second)
	if !e.holds(lease) {
		transitions := int32(0)
		if lease.Spec.LeaseTransitions != nil {
			transitions = *lease.Spec.LeaseTransitions + 1
		}
		lease.Spec.AcquireTime, lease.Spec.LeaseTransitions = &now, &transitions
	}
	lease.Spec.HolderIdentity, lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &e.cfg.Identity, &now, &seconds
	return lease
}

// release lets another writer lead at once, if this one still holds the Lease.
func (e *election) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	lease, err := e.leases.Get(ctx, LeaseName, metav1.GetOptions{})
	if err == nil && e.holds(lease) {
		lease.Spec.HolderIdentity = nil
		_, err = e.leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		e.logFailure(ctx, err)
	}
}

// logFailure ignores errors that are normal in an election: another writer was faster.
func (e *election) logFailure(ctx context.Context, err error) {
	if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		e.logError(ctx, err, "Cannot use the lease; retrying", "lease", klog.KRef(e.cfg.LeaseNamespace, LeaseName))
	}
}
