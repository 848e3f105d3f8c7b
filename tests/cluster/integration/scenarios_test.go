package integration

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/crds"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
	backends "sigs.k8s.io/kube-network-policies/tests/netpol/cluster"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
)

// The truth tables' backend for clusters sees which proposals a server takes, and can write the
// objects of all their scenarios there.
func TestScenariosOfProposals(t *testing.T) {
	plane := newest.start(t)
	newCluster(t, plane).untaintNodes()
	define(t, plane, crds.V030, crds.Experimental)
	all := slices.Sorted(maps.Keys(netpol.Proposals))
	if got := proposalsOf(t, plane); len(got) > 0 {
		t.Fatalf("without patches the server is said to take %q", got)
	}

	defineFiles(t, plane, groups)
	k := newKubectl(t, plane.Admin())
	for _, file := range must[[]string](t)(filepath.Glob(patches)) {
		k.run("patch", "crd", "clusternetworkpolicies.policy.networking.k8s.io", "--type=json", "--patch-file="+file)
	}
	eventually(t, func() string { // the server takes up a definition a little later
		if got := proposalsOf(t, plane); !slices.Equal(got, all) {
			return fmt.Sprintf("with patches the server is said to take %q", got)
		}
		return ""
	})

	backend := clusterBackend(t, plane)
	played := 0
	for _, scenario := range scenarios.All() {
		if !slices.ContainsFunc(scenario.Needs, func(f netpol.Feature) bool { return slices.Contains(all, f) }) {
			continue
		}
		played++
		t.Run(scenario.Name, func(t *testing.T) { writeSteps(t, plane, backend, scenario) })
	}
	if played < 20 {
		t.Errorf("%d scenarios of proposals", played)
	}
}

// untaintNodes removes the taint of nodes that are not ready, so that they can have pods.
func (c *cluster) untaintNodes() {
	c.t.Helper()
	for _, node := range []string{c.node, c.otherNode} {
		must[*corev1.Node](c.t)(c.client.CoreV1().Nodes().Patch(c.t.Context(), node, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{}))
	}
}

// writeSteps writes the policies of each step, and no pods, which would need a kubelet.
func writeSteps(t *testing.T, plane *controlplane.ControlPlane, backend *backends.Backend, scenario netpol.Scenario) {
	state := scenario.Model.State()
	for _, step := range scenario.Steps {
		for i, pod := range state.Pods {
			state.ChangePod(netpol.PodName(pod), func(p *corev1.Pod) {
				p.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf("10.201.0.%d", i)}, {IP: fmt.Sprintf("fd00::%d", i)}}
			})
		}
		step.Change(state)
		written := &netpol.State{Proposed: state.Proposed, ClusterNetworkPolicies: state.ClusterNetworkPolicies}
		if err := backend.Apply(t.Context(), written); err != nil {
			t.Fatalf("step %s: %v", step.Name, err)
		}
		var want []string
		for _, p := range written.AllPolicies() {
			want = append(want, netpol.PolicyName(p))
		}
		slices.Sort(want)
		if got := clusterObjects(t, plane, backend.Name()); !slices.Equal(got, want) {
			t.Errorf("after step %s the server has %q, want %q", step.Name, got, want)
		}
	}
}

// clusterObjects returns the names of the administrators' objects, without that of the run.
func clusterObjects(t *testing.T, plane *controlplane.ControlPlane, run string) []string {
	t.Helper()
	client := must[dynamic.Interface](t)(dynamic.NewForConfig(plane.Admin()))
	var names []string
	for resource, version := range map[string]string{"clusternetworkpolicies": "v1beta1", "cidrgroups": "v1alpha1"} {
		list := must[*unstructured.UnstructuredList](t)(client.Resource(schema.GroupVersionResource{
			Group: "policy.networking.k8s.io", Version: version, Resource: resource,
		}).List(t.Context(), metav1.ListOptions{}))
		for _, object := range list.Items {
			names = append(names, strings.Replace(netpol.PolicyName(&object), "/"+run+"-", "/", 1))
		}
	}
	slices.Sort(names)
	return names
}

// proposalsOf returns the proposals that the backend for clusters finds on a server.
func proposalsOf(t *testing.T, plane *controlplane.ControlPlane) []netpol.Feature {
	t.Helper()
	return slices.DeleteFunc(clusterBackend(t, plane).Supports().Features, func(f netpol.Feature) bool { return !strings.HasPrefix(string(f), "NPEP-") })
}

func clusterBackend(t *testing.T, plane *controlplane.ControlPlane) *backends.Backend {
	t.Helper()
	backend := must[*backends.Backend](t)(backends.New(t.Context(), plane.Admin(), backends.Config{Image: "none", Families: []corev1.IPFamily{corev1.IPv4Protocol}}))
	t.Cleanup(func() {
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	return backend
}

// A server takes further pods, which have a status but no node, and their changes. They go with their
// namespaces.
func TestScaleBesideScenarios(t *testing.T) {
	plane := newest.start(t)
	c := newCluster(t, plane)
	c.untaintNodes()
	finishNamespaces(t, c.client)
	scale := backends.Scale{Pods: 200, Namespaces: 3, Policies: 50, Churn: 100}
	backend := must[*backends.Backend](t)(backends.New(t.Context(), plane.Admin(), backends.Config{
		Image: "none", Families: []corev1.IPFamily{corev1.IPv4Protocol}, Scale: scale,
	}))
	t.Cleanup(func() { _ = backend.Close() })

	ready := 0
	for _, pod := range must[*corev1.PodList](t)(c.client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: "app,pod"})).Items {
		if pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" && pod.Spec.NodeName == "" {
			ready++
		}
	}
	if ready < scale.Pods-1 { // one may just be replaced
		t.Errorf("%d of %d pods have a status", ready, scale.Pods)
	}
	eventually(t, func() string {
		if made := must[netpol.Environment](t)(backend.Environment(t.Context())).Scale.Changes; made < 100 {
			return fmt.Sprintf("%d changes were made", made)
		}
		return ""
	})
	t.Log(must[netpol.Environment](t)(backend.Environment(t.Context())).Scale)

	if err := backend.Close(); err != nil {
		t.Error(err)
	}
}

// finishNamespaces deletes what deleted namespaces contain and then themselves, as the controller
// does that is no part of an API server.
func finishNamespaces(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	watcher := must[watch.Interface](t)(client.CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{}))
	t.Cleanup(watcher.Stop)
	go func() {
		for event := range watcher.ResultChan() {
			namespace, ok := event.Object.(*corev1.Namespace)
			if !ok || event.Type == watch.Deleted || namespace.DeletionTimestamp == nil || len(namespace.Spec.Finalizers) == 0 {
				continue
			}
			ctx := context.Background()
			_ = client.CoreV1().Pods(namespace.Name).DeleteCollection(ctx, *metav1.NewDeleteOptions(0), metav1.ListOptions{})
			_ = client.NetworkingV1().NetworkPolicies(namespace.Name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
			namespace.Spec.Finalizers = nil
			_, _ = client.CoreV1().Namespaces().Finalize(ctx, namespace, metav1.UpdateOptions{})
		}
	}()
}
