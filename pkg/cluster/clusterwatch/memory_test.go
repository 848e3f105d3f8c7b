package clusterwatch

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/podwatch"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// measuredPod is pod i of namespaces of a hundred. It is one of ten replicas or, if it is
// alone, one of a StatefulSet: with two labels that no other pod has.
func measuredPod(i int, alone bool) *corev1.Pod {
	replica := i / 10
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprintf("web-%08x-%05d", replica, i),
			Namespace: fmt.Sprintf("ns-%04d", i/100),
			UID:       types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i)),
			Labels: map[string]string{
				"app": "web", "tier": "front", "team": "shop", "release": "stable",
				"app.kubernetes.io/managed-by": "deploy", "pod-template-hash": fmt.Sprintf("%08x", replica),
			},
		},
		Spec: corev1.PodSpec{NodeName: fmt.Sprintf("node-%04d", i%1000), Containers: []corev1.Container{{
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
		}}},
		Status: corev1.PodStatus{
			Phase:  corev1.PodRunning,
			PodIPs: []corev1.PodIP{{IP: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String()}},
		},
	}
	if alone {
		p.Labels["statefulset.kubernetes.io/pod-name"] = p.Name
		p.Labels["apps.kubernetes.io/pod-index"] = fmt.Sprint(i)
	}
	return p
}

// BenchmarkPodMemory is the heap of the agent's view for each pod, as it is read from an
// API server.
func BenchmarkPodMemory(b *testing.B) {
	const pods = 100000
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // what is interned is freed by the second one
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for name, alone := range map[string]bool{"shared-labels": false, "two-unique-labels": true} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				before := heap()
				shared := podwatch.NewShared()
				c := clusterstate.New(clusterstate.Config{NodeName: "node-0000", Features: compile.AllFeatures()})
				for i := range pods {
					message, err := measuredPod(i, alone).Marshal()
					if err != nil {
						b.Fatal(err)
					}
					read := &corev1.Pod{}
					if err := read.Unmarshal(message); err != nil {
						b.Fatal(err)
					}
					c.Set(shared.Strip(read))
				}
				s := c.Snapshot()
				shared = nil
				b.ReportMetric(float64(heap()-before)/pods, "B/pod")
				runtime.KeepAlive(c)
				runtime.KeepAlive(s)
			}
		})
	}
}
