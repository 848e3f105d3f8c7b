package integration

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
)

// cluster is one test's part of an API server: two nodes, and namespaces and
// addresses that no other test uses.
type cluster struct {
	t         *testing.T
	client    kubernetes.Interface
	number    uint32
	namespace string
	node      string // where the agent is
	otherNode string
	agents    *fakeAgents // nil before the first one starts
}

var clusters atomic.Uint32

// newCluster writes a namespace and two nodes. The test's end removes all objects except
// namespaces, which only a controller can delete.
func newCluster(t *testing.T, plane *controlplane.ControlPlane) *cluster {
	t.Helper()
	client, err := kubernetes.NewForConfig(plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, client: client, number: clusters.Add(1)}
	c.namespace = fmt.Sprintf("test-%d", c.number)
	c.node, c.otherNode = c.namespace+"-a", c.namespace+"-b"
	c.createNamespace(c.namespace, nil)
	for n, name := range []string{c.node, c.otherNode} {
		c.createNode(name, c.address(n*96)+"/28")
	}
	return c
}

// address returns one of the cluster's own addresses, n in 0-255.
func (c *cluster) address(n int) string { return fmt.Sprintf("10.200.%d.%d", c.number, n) }

// must fails the test for an error that no test is about.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (c *cluster) createNamespace(name string, labels map[string]string) {
	c.t.Helper()
	must[*corev1.Namespace](c.t)(c.client.CoreV1().Namespaces().Create(c.t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}))
}

func (c *cluster) labelNamespace(name, label, value string) {
	c.t.Helper()
	must[*corev1.Namespace](c.t)(c.client.CoreV1().Namespaces().Patch(c.t.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, label, value), metav1.PatchOptions{}))
}

func (c *cluster) createNode(name, cidr string) {
	c.t.Helper()
	must[*corev1.Node](c.t)(c.client.CoreV1().Nodes().Create(c.t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
	}, metav1.CreateOptions{}))
	c.t.Cleanup(func() {
		_ = c.client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
}

// createPod writes a running pod, labelled app=name.
func (c *cluster) createPod(name, node, ip string) {
	c.t.Helper()
	pods := c.client.CoreV1().Pods(c.namespace)
	pod := must[*corev1.Pod](c.t)(pods.Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}, metav1.CreateOptions{}))
	c.t.Cleanup(func() { c.deletePod(context.Background(), name) })
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
	must[*corev1.Pod](c.t)(pods.UpdateStatus(c.t.Context(), pod, metav1.UpdateOptions{}))
}

func (c *cluster) labelPod(name, app string) {
	c.t.Helper()
	must[*corev1.Pod](c.t)(c.client.CoreV1().Pods(c.namespace).Patch(c.t.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q}}}`, app), metav1.PatchOptions{}))
}

// deletePod deletes at once: no kubelet would confirm it. The pod may be gone.
func (c *cluster) deletePod(ctx context.Context, name string) {
	_ = c.client.CoreV1().Pods(c.namespace).Delete(ctx, name, *metav1.NewDeleteOptions(0))
}

// createPolicy writes a policy that selects the pods of one app for ingress.
func (c *cluster) createPolicy(name, app string, rules ...networkingv1.NetworkPolicyIngressRule) {
	c.t.Helper()
	must[*networkingv1.NetworkPolicy](c.t)(c.client.NetworkingV1().NetworkPolicies(c.namespace).Create(c.t.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: ofApp(app), Ingress: rules},
	}, metav1.CreateOptions{}))
	c.t.Cleanup(func() { c.deletePolicy(context.Background(), name) })
}

// deletePolicy deletes a policy, which may be gone.
func (c *cluster) deletePolicy(ctx context.Context, name string) {
	_ = c.client.NetworkingV1().NetworkPolicies(c.namespace).Delete(ctx, name, metav1.DeleteOptions{})
}

func ofApp(app string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// fromApp allows every port to pods of an app of the same namespace.
func fromApp(app string) networkingv1.NetworkPolicyIngressRule {
	selector := ofApp(app)
	return networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &selector}}}
}

// fromNamespaces allows every port to the pods of namespaces with a label.
func fromNamespaces(label, value string) networkingv1.NetworkPolicyIngressRule {
	selector := metav1.LabelSelector{MatchLabels: map[string]string{label: value}}
	return networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &selector}}}
}
