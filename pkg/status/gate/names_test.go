package gate

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// naming is the pod web with these gates, and conditions of ours that are true already.
func naming(gates, isTrue []corev1.PodConditionType) *corev1.Pod {
	return web("96", func(p *corev1.Pod) {
		p.Spec.ReadinessGates = nil
		for _, g := range gates {
			p.Spec.ReadinessGates = append(p.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: g})
		}
		for _, c := range isTrue {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue, Reason: "Earlier"})
		}
	})
}

// A pod gets those conditions that it names, and that the writer has, with one write. Those of other
// plugins, and those that are true, stay as they are.
func TestConditionsOfAPod(t *testing.T) {
	const another corev1.PodConditionType = "cni.example.com/network-ready"
	list := func(c ...corev1.PodConditionType) []corev1.PodConditionType { return c }
	both := list(PoliciesEnforced, NetworkReady)
	for name, tt := range map[string]struct {
		writes, gates, isTrue, want []corev1.PodConditionType
	}{
		"the deprecated one":         {both, list(PoliciesEnforced), nil, list(PoliciesEnforced)},
		"that of the proposal":       {both, list(NetworkReady), nil, list(NetworkReady)},
		"both":                       {both, list(NetworkReady, PoliciesEnforced), nil, both},
		"beside another plugin":      {both, list(another, NetworkReady), nil, list(NetworkReady)},
		"another plugin's only":      {both, list(another), nil, nil},
		"of another plugin, true":    {both, list(another, NetworkReady), list(another), list(NetworkReady)},
		"one is true":                {both, both, list(PoliciesEnforced), list(NetworkReady)},
		"both are true":              {both, both, both, nil},
		"without the feature gate":   {list(PoliciesEnforced), list(NetworkReady), nil, nil},
		"both, without feature gate": {list(PoliciesEnforced), both, nil, list(PoliciesEnforced)},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.stop()
				c.cfg.Conditions = tt.writes
				c.lead()
				c.Set("node-1", answer("100", "100", "95"), nil)
				c.create(naming(tt.gates, tt.isTrue))
				pass(10 * time.Second)
				c.wantConditions("before", corev1.ConditionFalse, Pending, tt.want, tt.isTrue)
				c.Set("node-1", answer("100", "100", "100"), nil)
				pass(10 * time.Second)
				c.wantConditions("once it is known", corev1.ConditionTrue, EnforcedOnAllNodes, tt.want, tt.isTrue)
			})
		})
	}
}

// wantConditions expects some conditions of the pod web, written at once, and earlier ones unchanged.
func (c *cluster) wantConditions(when string, status corev1.ConditionStatus, reason string, want, earlier []corev1.PodConditionType) {
	c.t.Helper()
	var got []corev1.PodConditionType
	for _, now := range c.get().Status.Conditions {
		switch {
		case now.Type == corev1.ContainersReady || now.Reason == "Earlier" && now.Status == corev1.ConditionTrue && slices.Contains(earlier, now.Type):
		case now.Status == status && now.Reason == reason:
			got = append(got, now.Type)
		default:
			c.t.Errorf("%s: unexpected condition %+v", when, now)
		}
	}
	slices.Sort(got)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(got, slices.Sorted(slices.Values(want))) || len(c.writes) != min(1, len(want)) {
		c.t.Errorf("%s: %d writes of %q, want one of %q", when, len(c.writes), got, want)
	}
	c.writes = nil
}

// By the clock of the simulation: what agents answer takes no time.
func TestSecondsUntilPodsAreReady(t *testing.T) {
	for n, within := range map[int]time.Duration{1: 2 * time.Second, 30: 2 * time.Second, 300: 6 * time.Second} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				for i := range n {
					p := naming([]corev1.PodConditionType{NetworkReady}, nil)
					p.Name, p.Spec.NodeName = fmt.Sprint("web-", i), fmt.Sprint("node-", 1+i%3)
					c.create(p)
					if i%50 == 49 {
						synctest.Wait() // a watch has a bounded buffer
					}
				}
				start := time.Now()
				for c.ready(NetworkReady) < n && time.Since(start) < within {
					pass(100 * time.Millisecond)
				}
				pods := c.ready(NetworkReady)
				c.mu.Lock()
				defer c.mu.Unlock()
				t.Logf("%d pods: %d ready after %v with %d writes", n, pods, time.Since(start), len(c.writes))
				if pods != n || len(c.writes) != n {
					t.Errorf("%d of %d pods are ready after %v with %d writes, want one each", pods, n, within, len(c.writes))
				}
			})
		})
	}
}

// ready returns how many pods have a condition that is true.
func (c *cluster) ready(t corev1.PodConditionType) (n int) {
	c.t.Helper()
	pods, err := c.client.CoreV1().Pods("shop").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range pods.Items {
		if now := conditionOf(&pods.Items[i], t); now != nil && now.Status == corev1.ConditionTrue {
			n++
		}
	}
	return n
}
