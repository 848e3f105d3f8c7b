package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const startupTaint = "kube-network-policies.x-k8s.io/agent-not-ready"

// With the rights that the chart gives for it, the writer removes the startup taint from the
// node whose agent is ready, and may do nothing else to a node.
func TestStartupTaintIsRemoved(t *testing.T) {
	for version, s := range map[string]*server{"v1.37.0": newest, "v1.27.0": statusOff} {
		t.Run(s.name, func(t *testing.T) {
			plane := s.start(t)
			values := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(values, []byte("statusWriter: {flags: {startup-taint: "+startupTaint+"}}"), 0o644); err != nil {
				t.Fatal(err)
			}
			objects, _ := renderChart(t, values, version)
			newKubectl(t, plane.Admin()).apply(strings.Join(objects, "\n---\n"))
			c := newCluster(t, plane)
			other := corev1.Taint{Key: "example.com/other", Effect: corev1.TaintEffectNoSchedule}
			for _, node := range []string{c.node, c.otherNode} {
				c.taint(node, corev1.Taint{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule}, other)
			}
			c.createAgent(c.node, corev1.ConditionTrue)
			c.createAgent(c.otherNode, corev1.ConditionFalse)
			config, client := account(t, plane, namespace, statusWriter)
			w := startWriter(t, config, "--startup-taint="+startupTaint)
			eventually(t, func() string {
				if got := c.taints(c.node); len(got) != 1 || got[0] != other {
					return fmt.Sprintf("the node with an agent has the taints %v, want %v", got, other)
				}
				if got := w.metric(`netpol_readiness_writes_total{kind="Node",result="success"}`); got != "1" {
					return fmt.Sprintf("%q removals are counted, want 1", got)
				}
				return ""
			})
			if got := c.taints(c.otherNode); len(got) != 2 {
				t.Errorf("the node whose agent is not ready has the taints %v", got)
			}
			if s == newest {
				c.guarded(client)
			}
		})
	}
}

// guarded expects that the API server refuses all other changes of a node by the writer.
func (c *cluster) guarded(client kubernetes.Interface) {
	c.t.Helper()
	for _, patch := range []string{
		`{"metadata": {"labels": {"a": "b"}}}`,
		`{"metadata": {"annotations": {"a": "b"}}}`,
		`{"spec": {"unschedulable": true}}`,
		`{"spec": {"taints": []}}`,
		`{"spec": {"taints": [{"key": "example.com/other", "effect": "NoSchedule"}, {"key": "example.com/new", "effect": "NoExecute"}]}}`,
		`{"spec": {"taints": [{"key": "example.com/other", "effect": "NoExecute"}]}}`,
	} {
		eventually(c.t, func() string { // the guard takes a moment to be in force
			_, err := client.CoreV1().Nodes().Patch(c.t.Context(), c.node, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
				return fmt.Sprintf("%s: got %v, want it refused", patch, err)
			}
			return ""
		})
	}
}

func (c *cluster) taint(node string, taints ...corev1.Taint) {
	c.t.Helper()
	n := must[*corev1.Node](c.t)(c.client.CoreV1().Nodes().Get(c.t.Context(), node, metav1.GetOptions{}))
	n.Spec.Taints = taints
	must[*corev1.Node](c.t)(c.client.CoreV1().Nodes().Update(c.t.Context(), n, metav1.UpdateOptions{}))
}

func (c *cluster) taints(node string) []corev1.Taint {
	c.t.Helper()
	return must[*corev1.Node](c.t)(c.client.CoreV1().Nodes().Get(c.t.Context(), node, metav1.GetOptions{})).Spec.Taints
}

// createAgent writes the pod of an agent. No DaemonSet controller runs.
func (c *cluster) createAgent(node string, ready corev1.ConditionStatus) {
	c.t.Helper()
	pods := c.client.CoreV1().Pods(namespace)
	pod := must[*corev1.Pod](c.t)(pods.Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + node, Labels: map[string]string{"app.kubernetes.io/name": agent}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "agent", Image: "none"}}},
	}, metav1.CreateOptions{}))
	c.t.Cleanup(func() {
		_ = pods.Delete(context.Background(), pod.Name, *metav1.NewDeleteOptions(0))
	})
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	must[*corev1.Pod](c.t)(pods.UpdateStatus(c.t.Context(), pod, metav1.UpdateOptions{}))
}
