package cluster

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Whichever request of a change is interrupted, whether or not the API server still does it, Close deletes
// everything, also if the API server cannot at first.
func TestCloseAfterAnInterrupt(t *testing.T) {
	for _, done := range []bool{false, true} {
		for n, interrupted := 1, true; interrupted; n++ {
			interrupted = closeAfterInterrupt(t, n, done)
			if t.Failed() {
				t.Fatalf("interrupted at request %d, which the API server has done: %t", n, done)
			}
			if !interrupted && n < 20 {
				t.Errorf("a change takes only %d requests", n)
			}
		}
	}
}

func closeAfterInterrupt(t *testing.T, at int, done bool) (interrupted bool) {
	w := newWorld(t)
	w.serve(nil, v1Resources, v2Resources)
	b := w.backend(t, Config{})
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	requests, closing := 0, false
	react := func(tracker clienttesting.ObjectTracker) clienttesting.ReactionFunc {
		refused := false
		return func(action clienttesting.Action) (bool, runtime.Object, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if closing && !refused {
				refused = true
				return true, nil, apierrors.NewServiceUnavailable("the API server starts")
			}
			requests++
			if closing || requests < at {
				return false, nil, nil
			}
			if create, ok := action.(clienttesting.CreateAction); ok && done && requests == at {
				if err := tracker.Create(action.GetResource(), create.GetObject(), action.GetNamespace()); err != nil {
					t.Error(err)
				}
			}
			interrupt()
			return true, nil, context.Canceled
		}
	}
	w.PrependReactor("*", "*", react(w.Tracker()))
	w.objects.PrependReactor("*", "*", react(w.objects.Tracker()))
	state := netpol.Model{Namespaces: []string{"x", "y"}, Pods: []string{"a", "b"}}.State()
	state.Apply(netpol.NewPolicy("x", "p", netpol.DenyIngress()),
		netpol.NewAdminNetworkPolicy("p", 1, netpol.On(netpol.Namespaces("ns=x")), netpol.DenyFrom(netpol.Namespaces(""))))
	if err := b.Apply(ctx, state); err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	interrupted = ctx.Err() != nil
	w.mu.Lock()
	closing = true
	w.mu.Unlock()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	namespaces, err := w.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(namespaces.Items) != 1 || w.adminPolicies(t) != "" {
		t.Errorf("%v, %d namespaces are left, want 1, and policies %q", err, len(namespaces.Items), w.adminPolicies(t))
	}
	return interrupted
}
