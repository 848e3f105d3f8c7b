package statustest

import (
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Pods are those of a fake client, which streams no lists.
type Pods struct{ corev1client.PodInterface }

// PodsOf returns the pods of a namespace, or of all.
func PodsOf(client kubernetes.Interface, namespace string) Pods {
	return Pods{client.CoreV1().Pods(namespace)}
}

// IsWatchListSemanticsUnSupported is what reflectors ask.
func (Pods) IsWatchListSemanticsUnSupported() bool { return true }

// Nodes are those of a fake client, which streams no lists.
type Nodes struct{ corev1client.NodeInterface }

// NodesOf returns the nodes.
func NodesOf(client kubernetes.Interface) Nodes { return Nodes{client.CoreV1().Nodes()} }

// IsWatchListSemanticsUnSupported is what reflectors ask.
func (Nodes) IsWatchListSemanticsUnSupported() bool { return true }
