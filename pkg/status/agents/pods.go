package agents

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
)

// NewPods returns an informer of the pods of the agents, which a label selector selects.
func NewPods(pods apiclient.Source[*corev1.PodList], selector string) cache.SharedIndexInformer {
	return newInformer(apiclient.ListWatch(pods, metav1.ListOptions{LabelSelector: selector}), &corev1.Pod{}, strip)
}

// NewNodes returns an informer of nodes as strip returns them.
func NewNodes(nodes apiclient.Source[*corev1.NodeList], strip cache.TransformFunc) cache.SharedIndexInformer {
	return newInformer(apiclient.ListWatch(nodes, metav1.ListOptions{}), &corev1.Node{}, strip)
}

func newInformer(lw cache.ListerWatcher, example runtime.Object, strip cache.TransformFunc) cache.SharedIndexInformer {
	informer := cache.NewSharedIndexInformer(lw, example, 0, cache.Indexers{})
	_ = informer.SetTransform(strip) // it has not started
	return informer
}

// strip removes unused fields.
func strip(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	var containers []corev1.Container
	for _, c := range pod.Spec.Containers {
		containers = append(containers, corev1.Container{Command: c.Command, Args: c.Args})
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec: corev1.PodSpec{NodeName: pod.Spec.NodeName, ServiceAccountName: pod.Spec.ServiceAccountName, Containers: containers},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, Conditions: pod.Status.Conditions,
			InitContainerStatuses: pod.Status.InitContainerStatuses, // one of them publishes the key
		},
	}, nil
}

// Running returns the agents that are neither starting nor ending, one per node: during an
// update a node has two, and the older one serves until it ends.
func Running(pods cache.SharedIndexInformer) []*corev1.Pod {
	var found []*corev1.Pod
	for _, o := range pods.GetStore().List() {
		if pod, ok := o.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			found = append(found, pod)
		}
	}
	node := func(a, b *corev1.Pod) int { return strings.Compare(a.Spec.NodeName, b.Spec.NodeName) }
	slices.SortFunc(found, func(a, b *corev1.Pod) int {
		return cmp.Or(node(a, b), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return slices.CompactFunc(found, func(a, b *corev1.Pod) bool { return node(a, b) == 0 })
}
