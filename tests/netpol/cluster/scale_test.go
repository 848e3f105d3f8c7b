package cluster

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// The pods of a scale are up, with addresses of their own, and change at the wanted rate while
// scenarios are played. Scenarios do not see them. Nothing is left of them.
func TestScale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.backend(t, Config{Scale: Scale{Pods: 30, Namespaces: 4, Policies: 10, Churn: 5}})
		pods, policies := w.scalePods(t), w.scalePolicies(t)
		addresses := make(map[string]bool)
		for _, pod := range pods {
			addresses[pod.Status.PodIP] = true
			if !isReady(&pod) || pod.Spec.NodeName != "" || pod.Labels["app"] == "" {
				t.Errorf("pod %s has %+v", netpol.PodName(&pod), pod)
			}
		}
		if len(pods) != 30 || len(addresses) != 30 || len(policies) != 10 {
			t.Errorf("%d pods with %d addresses and %d policies", len(pods), len(addresses), len(policies))
		}

		state := netpol.Model{}.State()
		if err := b.Apply(t.Context(), state); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		environment, err := b.Environment(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := environment.Scale; got.Changes < 290 || got.ChangesPerSecond < 4.8 || got.ChangesPerSecond > 5 {
			t.Errorf("after a minute: %s, changes: %d", got, got.Changes)
		}
		labels, replaced := 0, 0
		for i, pod := range w.scalePods(t) {
			if !maps.Equal(pod.Labels, pods[i].Labels) {
				labels++
			}
			if pod.Status.PodIP != pods[i].Status.PodIP {
				replaced++
			}
		}
		rewritten := 0
		for i, policy := range w.scalePolicies(t) {
			if !equality.Semantic.DeepEqual(policy.Spec, policies[i].Spec) {
				rewritten++
			}
		}
		if labels == 0 || replaced != 30 || rewritten == 0 {
			t.Errorf("after a minute %d labels, %d addresses and %d policies differ", labels, replaced, rewritten)
		}

		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if left, _ := w.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); len(left.Items) != 1 {
			t.Errorf("%d namespaces are left, want the one that was there", len(left.Items))
		}
	})
}

func (w *world) scalePods(t *testing.T) []corev1.Pod {
	t.Helper()
	list, err := w.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: "app"})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func (w *world) scalePolicies(t *testing.T) []networkingv1.NetworkPolicy {
	t.Helper()
	list, err := w.NetworkingV1().NetworkPolicies("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// A run whose scale stopped changing has measured something else than it says.
func TestScaleThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		broken := errors.New("quota")
		w.PrependReactor("patch", "networkpolicies", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, broken })
		b := w.backend(t, Config{Scale: Scale{Namespaces: 1, Policies: 1, Churn: 1}})
		time.Sleep(time.Minute)
		if err := b.Close(); !errors.Is(err, broken) {
			t.Errorf("Close = %v, want %v", err, broken)
		}
	})
}

func TestScaleValidate(t *testing.T) {
	for want, scale := range map[string]Scale{
		"":                               {Pods: 1, Namespaces: 1, Policies: 1, Churn: 0.5},
		"Scale.Pods is -1":               {Pods: -1},
		"Scale.Pods is 100000":           {Pods: 100000, Namespaces: 1},
		"Scale.Policies is -1":           {Policies: -1},
		"Scale.Namespaces is -1":         {Namespaces: -1},
		"Scale.Namespaces is 0":          {Policies: 1},
		"Scale.Churn is 1, with 0 pods ": {Namespaces: 1, Churn: 1},
		"Scale.Churn is -1":              {Pods: 1, Namespaces: 1, Churn: -1},
	} {
		err := scale.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("Validate of %+v = %v, want %q", scale, err, want)
		}
	}
}

// Addresses are distinct in both families.
func TestScaleAddresses(t *testing.T) {
	l := &scale{families: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}}
	seen := make(map[string]bool)
	for range scaleAddresses {
		ips := l.newAddresses()
		seen[ips[0].IP], seen[ips[1].IP] = true, true
	}
	if len(seen) != 2*scaleAddresses || !seen["198.18.0.0"] || !seen["198.19.255.255"] || !seen["2001:2::1:ffff"] {
		t.Errorf("%d addresses", len(seen))
	}
}
