package main

import (
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/tests/speed/bench/cluster"
)

var created = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// replica returns the common part of all pods. Most of what an API server sends about a pod
// does not affect policies.
var replica = func() corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			CreationTimestamp: metav1.NewTime(created),
			Annotations:       map[string]string{"a": "annotations can be long", "b": "and are of no concern", "c": "here"},
			ManagedFields:     []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: &metav1.FieldsV1{Raw: make([]byte, 1500)}}},
		},
		Spec: corev1.PodSpec{
			Containers:  []corev1.Container{container("http", cluster.Port), container("proxy", 15000)},
			Volumes:     []corev1.Volume{{Name: "a"}, {Name: "b"}, {Name: "c"}},
			Tolerations: []corev1.Toleration{{Key: "a"}, {Key: "b"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, HostIP: "192.168.0.1"},
	}
	for _, typ := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled, corev1.PodReadyToStartContainers} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: typ, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(created)})
	}
	return p
}()

func container(name string, port int32) corev1.Container {
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(port)}}}
	c := corev1.Container{
		Name:  name,
		Image: "registry.example/team/" + name + ":v1.2.3",
		Ports: []corev1.ContainerPort{
			{Name: name, ContainerPort: port, Protocol: corev1.ProtocolTCP},
			{Name: name + "-metrics", ContainerPort: port + 1, Protocol: corev1.ProtocolTCP},
		},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
		}},
		LivenessProbe: probe, ReadinessProbe: probe,
		VolumeMounts: []corev1.VolumeMount{{Name: "a", MountPath: "/a"}, {Name: "b", MountPath: "/b"}, {Name: "c", MountPath: "/c"}},
	}
	for e := range 10 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", e), Value: "a value of some length"})
	}
	return c
}

// newPod returns a running pod with two containers and the labels and owner of a replica.
// It shares data with other pods that must not be changed.
func newPod(namespace, name, set, node string, addrs ...netip.Addr) *corev1.Pod {
	p := replica
	p.Namespace, p.Name = namespace, name
	p.UID = types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012s", name))
	p.Labels = map[string]string{
		"app": "web", "tier": "front", "team": "shop", "release": "r0",
		"app.kubernetes.io/managed-by": "deploy", "pod-template-hash": set,
	}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-" + set}}
	p.Spec.NodeName = node
	for _, addr := range addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: addr.String()})
	}
	p.Status.PodIP = addrs[0].String()
	return &p
}
