package status

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

func leads(w *running) bool { return testutil.ToFloat64(w.metrics.leader) == 1 }

// Slow, refused and lost requests of two writers, at any moment of a period: never do both lead, and one
// does in the end.
func TestThereAreNeverTwoLeaders(t *testing.T) {
	ofLeases := func(r statustest.Request) bool { return r.Resource == "leases" }
	for name, fault := range map[string]statustest.Behavior{
		"answers after 3 s":  {Delay: 3 * time.Second},
		"answers after 5 s":  {Delay: 5 * time.Second},
		"answers after 11 s": {Delay: 11 * time.Second},
		"answers after 16 s": {Delay: 16 * time.Second},
		"no connection":      {Down: true},
		"conflicts":          {Refuse: refuse(ofLeases, statustest.Conflict)},
		"reads alone":        {Refuse: refuse(func(r statustest.Request) bool { return ofLeases(r) && r.Verb != "get" }, statustest.Conflict)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := statustest.NewServer(statustest.Behavior{})
				first, second := start(t, s, setting{identity: "1"}), start(t, s, setting{identity: "2"})
				watch := func(d time.Duration) {
					for ; d > 0; d -= 100 * time.Millisecond {
						settle(100 * time.Millisecond)
						if leads(first) && leads(second) {
							t.Fatal("two writers lead")
						}
					}
				}
				for _, lasts := range []time.Duration{time.Second, 7 * time.Second, 13 * time.Second, 14500 * time.Millisecond, 40 * time.Second} {
					watch(20 * time.Second)
					s.SetBehavior(fault)
					watch(lasts)
					s.SetBehavior(statustest.Behavior{})
				}
				watch(time.Minute)
				if leads(first) == leads(second) {
					t.Errorf("first leads: %v, second: %v", leads(first), leads(second))
				}
			})
		})
	}
}

// A writer stops as soon as it sees another holder, waits until that has not renewed the Lease for
// leaseDuration, and no longer than that.
func TestALeaseThatAnotherHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		client, err := apiclient.New(s.Config(), nil, coordinationv1.SchemeGroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		leases := apiclient.Leases(client, "kube-system")
		w := start(t, s, setting{identity: "1"})
		settle(time.Minute)
		take := func() {
			lease, err := leases.Get(t.Context(), LeaseName, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			other, now := "other", metav1.NowMicro()
			lease.Spec.HolderIdentity, lease.Spec.RenewTime = &other, &now
			if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 { // the other one renews it
			take()
			settle(2*retryPeriod + time.Second)
			if leads(w) {
				t.Fatal("the writer leads although another one holds the Lease")
			}
		}
		settle(leaseDuration - 2*retryPeriod - 2*time.Second)
		if leads(w) {
			t.Error("the writer leads before the other one's Lease has expired")
		}
		settle(retryPeriod + 2*time.Second)
		if !leads(w) {
			t.Error("the writer does not lead although the other one does not renew the Lease")
		}
		w.stop()
		lease, err := leases.Get(t.Context(), LeaseName, metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity != nil || lease.Spec.LeaseTransitions == nil || *lease.Spec.LeaseTransitions != 1 {
			t.Errorf("%v; after the end of the writer the Lease is %+v, want it without a holder, after one transition", err, lease.Spec)
		}
	})
}
