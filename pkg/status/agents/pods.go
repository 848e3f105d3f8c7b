package agents

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Informers returns a factory for the pods of the agents: those in a namespace that a label selector
// selects.
func Informers(client kubernetes.Interface, namespace, selector string) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(strip),
		informers.WithNamespace(namespace), informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = selector }))
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
