package lab

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NewPod returns a pod for AddPods with one container that declares ports.
func NewPod(namespace, name, node string, labels map[string]string, ports ...corev1.ContainerPort) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "server", Image: "server", Ports: ports}},
		},
	}
}

// NewNamespace returns a namespace with labels and the label that API servers add.
func NewNamespace(name string, labels map[string]string) *corev1.Namespace {
	all := map[string]string{corev1.LabelMetadataName: name}
	for key, value := range labels {
		all[key] = value
	}
	return &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: all},
	}
}
