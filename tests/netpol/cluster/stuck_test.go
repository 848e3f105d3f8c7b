package cluster

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Where the network plugin does not work, no pod starts. The run ends soon and says what the
// kubelet says, instead of waiting as long as an image may take.
func TestPodsThatDoNotStart(t *testing.T) {
	for _, c := range []struct {
		name, reason string
		want         string
		atMost       time.Duration
	}{
		{"network plugin", "FailedCreatePodSandBox", "pod t-x/a does not start: FailedCreatePodSandBox: plugin type=\"bridge\" failed", 30 * time.Second},
		{"slow image", "Pulling", "wait for pod t-x/a to run: context deadline exceeded", 2 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
					pod := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
					pod.Status.Phase = corev1.PodPending
					return true, pod, w.Tracker().Create(action.GetResource(), pod, pod.Namespace)
				})
				event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "t-x", Name: "e"}, InvolvedObject: corev1.ObjectReference{Name: "a"},
					Type: corev1.EventTypeWarning, Reason: c.reason, Message: "plugin type=\"bridge\" failed"}
				if _, err := w.CoreV1().Events("t-x").Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				started := time.Now()

				err := netpol.Runner{Backend: w.backend(t, Config{})}.CheckHealth(context.WithoutCancel(t.Context()))

				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %s", err, c.want)
				}
				if took := time.Since(started); took > c.atMost {
					t.Errorf("that took %s", took)
				}
			})
		})
	}
}
