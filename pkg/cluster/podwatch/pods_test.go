package podwatch

import (
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/randfill"
)

// realisticPod is pod i of a busy cluster as an API server sends it. Ten consecutive pods are
// replicas.
func realisticPod(i int) *corev1.Pod {
	replica := i / 10
	created := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local))
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}}
	container := func(name string, port int32) corev1.Container {
		c := corev1.Container{
			Name:  name,
			Image: "registry.example/team/" + name + ":v1.2.3",
			Ports: []corev1.ContainerPort{
				{Name: name, ContainerPort: port, Protocol: corev1.ProtocolTCP},
				{Name: name + "-metrics", ContainerPort: port + 1, Protocol: corev1.ProtocolTCP, HostPort: 9},
			},
			Resources:     corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi")}},
			LivenessProbe: probe, ReadinessProbe: probe,
			VolumeMounts: []corev1.VolumeMount{{Name: "a", MountPath: "/a"}, {Name: "b", MountPath: "/b"}, {Name: "c", MountPath: "/c"}},
		}
		for e := range 10 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", e), Value: "a value of some length"})
		}
		return c
	}
	sidecar := container("proxy", 15000)
	sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:              fmt.Sprintf("web-%08x-%05d", replica, i),
			Namespace:         fmt.Sprintf("ns-%04d", replica%100),
			UID:               types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i)),
			ResourceVersion:   fmt.Sprint(100000 + i),
			CreationTimestamp: created,
			Labels: map[string]string{
				"app": "web", "tier": "front", "team": "shop", "release": "stable",
				"app.kubernetes.io/managed-by": "deploy", "pod-template-hash": fmt.Sprintf("%08x", replica),
			},
			Annotations:     map[string]string{"a": "annotations can be long", "b": "and are of no concern", "c": "here"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: fmt.Sprintf("web-%08x", replica)}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: &metav1.FieldsV1{Raw: make([]byte, 1500)}}},
		},
		Spec: corev1.PodSpec{
			NodeName:           fmt.Sprintf("node-%04d", i%1000),
			ServiceAccountName: "app", DeprecatedServiceAccount: "app",
			InitContainers: []corev1.Container{container("setup", 1), sidecar},
			Containers:     []corev1.Container{container("http", 8080), {Name: "quiet", Image: "quiet"}},
			Volumes:        []corev1.Volume{{Name: "a"}, {Name: "b"}, {Name: "c"}},
			Tolerations:    []corev1.Toleration{{Key: "a"}, {Key: "b"}},
		},
		Status: corev1.PodStatus{
			Phase:  corev1.PodRunning,
			PodIP:  fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255),
			HostIP: "192.168.0.1",
			PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}, {IP: fmt.Sprintf("fd00::%x:%x", i>>16, i&0xffff)}},
		},
	}
	for _, c := range []corev1.PodConditionType{"Initialized", "Ready", "ContainersReady", "PodScheduled", "PodReadyToStartContainers"} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: created})
	}
	return p
}

// randomPod sets each field at random, and fields that policy reads often to valid values.
func randomPod(r *rand.Rand) *corev1.Pod {
	pick := func(values ...string) string { return values[r.IntN(len(values))] }
	p := &corev1.Pod{}
	randfill.NewWithSeed(r.Int64()).NilChance(0.3).NumElements(0, 3).MaxDepth(12).Funcs(
		func(q *resource.Quantity, _ randfill.Continue) {
			*q = *resource.NewQuantity(r.Int64N(1000), resource.DecimalSI)
		},
		func(t *metav1.Time, _ randfill.Continue) { *t = metav1.Unix(r.Int64N(1<<40), 0) },
		func(s *corev1.Protocol, _ randfill.Continue) {
			*s = corev1.Protocol(pick("", "TCP", "UDP", "SCTP", "ICMP"))
		},
		func(s *corev1.PodPhase, _ randfill.Continue) { *s = corev1.PodPhase(pick("", "Running", "Failed")) },
		func(s *corev1.ContainerRestartPolicy, _ randfill.Continue) {
			*s = corev1.ContainerRestartPolicy(pick("Always", "Never"))
		},
		func(ip *corev1.PodIP, _ randfill.Continue) {
			ip.IP = pick("", "10.0.0.1", "fd00::1", "::ffff:10.0.0.2", "no address")
		},
		func(p *corev1.ContainerPort, c randfill.Continue) {
			c.FillNoCustom(p)
			p.ContainerPort = r.Int32N(70000) - 1000
		},
	).Fill(p)
	p.Spec.HostNetwork = r.IntN(4) == 0
	return p
}
