package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/status/gate"
)

const readinessFile = "../../../install-readiness.yaml" // for servers from 1.30 on

// With the rights of install-readiness.yaml, the writer makes a pod ready once its node enforces what the
// API server has and the other node knows the pod. It may do nothing else to a pod.
func TestReadinessGate(t *testing.T) {
	plane := newest.start(t)
	install(t, plane)
	config, client := account(t, plane, namespace, statusWriter)
	before := rights(t, client)
	k := newKubectl(t, plane.Admin())
	k.run("apply", "--server-side", "--validate=strict", "-f", readinessFile)
	t.Cleanup(func() { _, _ = k.with(context.Background(), "", "delete", "--ignore-not-found", "-f", readinessFile) })
	eventually(t, func() string {
		more := slices.DeleteFunc(rights(t, client), func(right string) bool { return slices.Contains(before, right) })
		if want := []string{"patch pods/status"}; !slices.Equal(more, want) {
			return fmt.Sprintf("the file grants %q, want %q", more, want)
		}
		return ""
	})

	c := newCluster(t, plane)
	own, other := c.startFakeAgent(c.node), c.startFakeAgent(c.otherNode)
	other.enforce("9000000000000000000")
	c.createPolicy("web", "web")
	c.createGatedPod("web", c.node)
	c.createGatedPod("host", c.otherNode, func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	w := startWriter(t, config, "--pod-readiness", "--feature-gates=PodNetworkReadiness=true")
	c.wantGate("host", corev1.ConditionTrue, gate.HostNetwork, "")
	c.wantGate("web", corev1.ConditionFalse, gate.Pending, "Waiting for its own node "+c.node+": ")
	own.enforce("9000000000000000000")
	c.wantGate("web", corev1.ConditionTrue, gate.EnforcedOnAllNodes, "")
	if got := w.metric(`netpol_readiness_writes_total{kind="Pod",result="success"}`); got != "3" {
		t.Errorf("%q writes are counted, want 3", got)
	}

	// Neither another writer nor an agent that has forgotten all changes a pod that is ready.
	w.stop()
	own.enforce("1")
	ready := c.pod("web")
	startWriter(t, config, "--pod-readiness", "--feature-gates=PodNetworkReadiness=true")
	c.createGatedPod("later", c.node)
	c.wantGate("later", corev1.ConditionFalse, gate.Pending, "Waiting for its own node "+c.node+": ")
	if now := c.pod("web"); now.ResourceVersion != ready.ResourceVersion {
		t.Errorf("the status of a pod that was ready is now %+v", now.Status)
	}

	// The next pod of a name is another pod, also to the API server.
	c.deletePod(t.Context(), "later")
	c.createGatedPod("later", c.node)
	_, err := client.CoreV1().Pods(c.namespace).Patch(t.Context(), "later", types.StrategicMergePatchType,
		fmt.Appendf(nil, `{"metadata": {"uid": %q}, "status": {"conditions": [{"type": %q, "status": "True"}]}}`, ready.UID, gate.NetworkReady), metav1.PatchOptions{}, "status")
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "metadata.uid") {
		t.Errorf("a write for another pod of the name: got %v, want metadata.uid to be invalid", err)
	}
	own.enforce("9000000000000000000")
	c.wantGate("later", corev1.ConditionTrue, gate.EnforcedOnAllNodes, "")
	c.guardedPods(client)
}

// A node elsewhere whose agent does not answer, or does not prove itself, delays a pod by half a minute.
func TestReadinessGateWithAHungNode(t *testing.T) {
	plane := newest.start(t)
	install(t, plane)
	k := newKubectl(t, plane.Admin())
	k.run("apply", "--server-side", "--validate=strict", "-f", readinessFile)
	t.Cleanup(func() { _, _ = k.with(context.Background(), "", "delete", "--ignore-not-found", "-f", readinessFile) })
	c := newCluster(t, plane)
	c.startFakeAgent(c.node).enforce("9000000000000000000")
	c.createGatedPod("web", c.node)
	config, _ := account(t, plane, namespace, statusWriter)
	startWriter(t, config, "--pod-readiness", "--feature-gates=PodNetworkReadiness=true")
	c.wantGate("web", corev1.ConditionFalse, gate.Pending, "Waiting for "+c.otherNode+": no agent runs there.")
	c.wantGate("web", corev1.ConditionTrue, gate.EnforcedOnOwnNode, c.otherNode+": no agent runs there.")

	other := c.startFakeAgent(c.otherNode)
	other.enforce("9000000000000000000")
	c.hideKey(other)
	c.createGatedPod("later", c.node)
	c.wantGate("later", corev1.ConditionFalse, gate.Pending, "Waiting for "+c.otherNode+": pod "+other.pod.Name+" publishes no key")
	c.wantGate("later", corev1.ConditionTrue, gate.EnforcedOnOwnNode, "")
}

// The figures of docs/feedback/kep-5709.md: pods that get their addresses at once become ready with one
// write each. Both agents know them already.
func TestReadinessOfManyPods(t *testing.T) {
	plane := newest.start(t)
	install(t, plane)
	k := newKubectl(t, plane.Admin())
	k.run("apply", "--server-side", "--validate=strict", "-f", readinessFile)
	t.Cleanup(func() { _, _ = k.with(context.Background(), "", "delete", "--ignore-not-found", "-f", readinessFile) })
	c := newCluster(t, plane)
	fast := rest.CopyConfig(plane.Admin())
	fast.QPS = -1
	c.client = must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(fast))
	for _, node := range []string{c.node, c.otherNode} {
		c.startFakeAgent(node).enforce("9000000000000000000")
	}
	config, _ := account(t, plane, namespace, statusWriter)
	w := startWriter(t, config, "--pod-readiness", "--feature-gates=PodNetworkReadiness=true")
	written := 0
	for _, n := range []int{1, 30, 300} {
		start, addressed := time.Now(), make([]time.Time, n)
		for i := range n {
			c.createGatedPod(fmt.Sprintf("web-%d-%d", n, i), c.node)
			addressed[i] = time.Now()
		}
		became := map[string]time.Time{}
		eventually(t, func() string {
			pods := must[*corev1.PodList](t)(c.client.CoreV1().Pods(c.namespace).List(t.Context(), metav1.ListOptions{ResourceVersion: "0"}))
			for i := range pods.Items {
				p := &pods.Items[i]
				if _, known := became[p.Name]; !known && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
					return c.Type == gate.NetworkReady && c.Status == corev1.ConditionTrue
				}) {
					became[p.Name] = time.Now()
				}
			}
			for i := range n {
				if _, known := became[fmt.Sprintf("web-%d-%d", n, i)]; !known {
					return fmt.Sprintf("web-%d-%d is not ready", n, i)
				}
			}
			return ""
		})
		var waited []time.Duration
		for i, at := range addressed {
			waited = append(waited, max(0, became[fmt.Sprintf("web-%d-%d", n, i)].Sub(at)))
		}
		slices.Sort(waited)
		t.Logf("%d pods in %v: True %v (median) and %v (last) after the address", n, addressed[n-1].Sub(start), waited[n/2], waited[n-1])
		written += n
		eventually(t, func() string {
			if got := w.metric(`netpol_readiness_writes_total{kind="Pod",result="success"}`); got != fmt.Sprint(written) {
				return fmt.Sprintf("%q writes for %d pods", got, written)
			}
			return ""
		})
	}
}

func (c *cluster) pod(name string) *corev1.Pod {
	c.t.Helper()
	return must[*corev1.Pod](c.t)(c.client.CoreV1().Pods(c.namespace).Get(c.t.Context(), name, metav1.GetOptions{}))
}

// createGatedPod writes a running pod with both readiness gates, whose containers are ready.
func (c *cluster) createGatedPod(name, node string, change ...func(*corev1.Pod)) {
	c.t.Helper()
	pods := c.client.CoreV1().Pods(c.namespace)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "none"}},
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: gate.PoliciesEnforced}, {ConditionType: gate.NetworkReady}},
		},
	}
	for _, f := range change {
		f(p)
	}
	p = must[*corev1.Pod](c.t)(pods.Create(c.t.Context(), p, metav1.CreateOptions{}))
	c.t.Cleanup(func() { c.deletePod(context.Background(), name) })
	ip := c.address(1)
	p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}
	must[*corev1.Pod](c.t)(pods.UpdateStatus(c.t.Context(), p, metav1.UpdateOptions{}))
}

// wantGate waits for both conditions of a pod. Its other conditions stay.
func (c *cluster) wantGate(name string, status corev1.ConditionStatus, reason, message string) {
	c.t.Helper()
	eventually(c.t, func() string {
		conditions := c.pod(name).Status.Conditions
		has := func(t corev1.PodConditionType) bool {
			return slices.ContainsFunc(conditions, func(p corev1.PodCondition) bool {
				return p.Type == t && (t == corev1.ContainersReady || p.Status == status && p.Reason == reason && strings.Contains(p.Message, message))
			})
		}
		if !has(gate.PoliciesEnforced) || !has(gate.NetworkReady) || !has(corev1.ContainersReady) {
			return fmt.Sprintf("the conditions of %s are %+v, want %s %s %s", name, conditions, status, reason, message)
		}
		return ""
	})
}

// guardedPods expects that the API server refuses all other changes of pods by the writer.
func (c *cluster) guardedPods(client kubernetes.Interface) {
	c.t.Helper()
	c.createPod("plain", c.node, c.address(2))
	for _, tc := range []struct{ pod, patch string }{
		{"plain", fmt.Sprintf(`{"status": {"conditions": [{"type": %q, "status": "True"}]}}`, gate.NetworkReady)},
		{"web", fmt.Sprintf(`{"status": {"conditions": [{"type": %q, "status": "False"}]}}`, gate.NetworkReady)},
		{"web", `{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}`},
		{"web", `{"status": {"conditions": [{"type": "ContainersReady", "$patch": "delete"}]}}`},
		{"web", `{"status": {"phase": "Failed"}}`},
		{"web", `{"status": {"podIP": "10.9.9.9", "podIPs": [{"$patch": "replace"}, {"ip": "10.9.9.9"}]}}`},
		{"web", `{"metadata": {"labels": {"app": "db"}}}`},
		{"web", `{"metadata": {"annotations": {"a": "b"}}}`},
		{"web", `{"metadata": {"finalizers": ["example.com/a"]}}`},
	} {
		eventually(c.t, func() string { // the guard takes a moment to be in force
			_, err := client.CoreV1().Pods(c.namespace).Patch(c.t.Context(), tc.pod, types.StrategicMergePatchType, []byte(tc.patch),
				metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
			if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the status writer") {
				return fmt.Sprintf("%s of %s: got %v, want the guard to refuse it", tc.patch, tc.pod, err)
			}
			return ""
		})
	}
}

// hideKey has the pod of an agent publish no key, as one of an earlier version does.
func (c *cluster) hideKey(a *fakeAgent) {
	c.t.Helper()
	pods := c.client.CoreV1().Pods(namespace)
	pod := must[*corev1.Pod](c.t)(pods.Get(c.t.Context(), a.pod.Name, metav1.GetOptions{}))
	pod.Status.InitContainerStatuses = nil
	must[*corev1.Pod](c.t)(pods.UpdateStatus(c.t.Context(), pod, metav1.UpdateOptions{}))
}
