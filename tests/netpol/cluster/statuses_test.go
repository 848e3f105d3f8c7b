package cluster

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// A pod that has ended is an object without a node, whose status has the address that a running pod
// got from the cluster.
func TestEndedPods(t *testing.T) {
	w := newWorld(t)
	b := w.backend(t, Config{})
	state := netpol.Model{Namespaces: []string{"x"}}.State()
	if err := b.Apply(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	first := state.Addr("x/a", corev1.IPv4Protocol)

	state = state.Clone()
	state.ChangePod("x/a", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed })
	heir := netpol.NewPod("x", "d", "node-2", state.Ports)
	heir.Status.PodIPs = state.Pod("x/a").Status.PodIPs
	state.AddPod(heir)
	for range 2 { // the second time changes nothing
		state = state.Clone()
		if err := b.Apply(t.Context(), state); err != nil {
			t.Fatal(err)
		}
		ended, err := w.CoreV1().Pods("t-x").Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		running, err := w.CoreV1().Pods("t-x").Get(t.Context(), "d", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if ended.Spec.NodeName != "" || ended.Spec.SchedulerName == "" || ended.Status.Phase != corev1.PodFailed {
			t.Errorf("x/a runs on %q (scheduler %q), its phase is %s", ended.Spec.NodeName, ended.Spec.SchedulerName, ended.Status.Phase)
		}
		now := running.Status.PodIPs[0].IP
		if now == first.String() || !slices.Equal(ended.Status.PodIPs, running.Status.PodIPs) || ended.Status.PodIP != now {
			t.Errorf("x/a had %s and has %v; x/d has %s", first, ended.Status.PodIPs, now)
		}
		if got := state.Addr("x/a", corev1.IPv4Protocol).String(); got != now {
			t.Errorf("in the state x/a has %s", got)
		}
	}
	updates := 0
	for _, action := range w.Actions() {
		if action.Matches("update", "pods") && action.GetSubresource() == "status" {
			updates++
		}
	}
	if updates != 1 {
		t.Errorf("the status was written %d times", updates)
	}

	// The next scenario has the pod again.
	if err := b.Apply(t.Context(), netpol.Model{Namespaces: []string{"x"}}.State()); err != nil {
		t.Fatal(err)
	}
	again, err := w.CoreV1().Pods("t-x").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || again.Spec.NodeName == "" || again.Status.Phase != corev1.PodRunning {
		t.Errorf("%v; x/a runs on %q", err, again.Spec.NodeName)
	}
}
