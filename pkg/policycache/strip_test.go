package policycache

import (
	"fmt"
	"reflect"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
)

func newStripPod() func(*corev1.Pod) *corev1.Pod {
	return stripPod(newPool(equalLabels), newPool(equalPorts))
}

// realisticPod is pod i of a busy cluster as its API server would send it. Ten
// pods in a row are replicas of one another.
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
	sidecar.RestartPolicy = &always
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
			NodeName:       fmt.Sprintf("node-%04d", i%1000),
			InitContainers: []corev1.Container{container("setup", 1), sidecar},
			Containers:     []corev1.Container{container("http", 8080), {Name: "quiet", Image: "quiet"}},
			Volumes:        []corev1.Volume{{Name: "a"}, {Name: "b"}, {Name: "c"}},
			Tolerations:    []corev1.Toleration{{Key: "a"}, {Key: "b"}},
		},
		Status: corev1.PodStatus{
			Phase:  corev1.PodRunning,
			PodIP:  fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255),
			HostIP: "192.168.0.1",
			PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}, {IP: fmt.Sprintf("fd00::%x", i)}},
		},
	}
	for _, c := range []corev1.PodConditionType{"Initialized", "Ready", "ContainersReady", "PodScheduled", "PodReadyToStartContainers"} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: created})
	}
	return p
}

func TestStripKeepsOfAPodWhatPolicyNeeds(t *testing.T) {
	in := realisticPod(7)
	now := metav1.Now()
	in.DeletionTimestamp = &now
	in.Spec.HostNetwork = true
	untouched := in.DeepCopy()
	got := newStripPod()(in)
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: in.Name, Namespace: in.Namespace, UID: in.UID, ResourceVersion: in.ResourceVersion,
			Labels: in.Labels, CreationTimestamp: in.CreationTimestamp, DeletionTimestamp: &now,
		},
		Spec: corev1.PodSpec{
			NodeName: in.Spec.NodeName, HostNetwork: true,
			InitContainers: []corev1.Container{{RestartPolicy: &always, Ports: []corev1.ContainerPort{
				{Name: "proxy", ContainerPort: 15000, Protocol: corev1.ProtocolTCP},
				{Name: "proxy-metrics", ContainerPort: 15001, Protocol: corev1.ProtocolTCP},
			}}},
			Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
				{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP},
				{Name: "http-metrics", ContainerPort: 8081, Protocol: corev1.ProtocolTCP},
			}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: in.Status.PodIPs},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if !reflect.DeepEqual(in, untouched) {
		t.Error("the object given was modified")
	}
	if again := newStripPod()(got); !reflect.DeepEqual(again, got) {
		t.Errorf("stripped twice %+v\nwant %+v", again, got)
	}
}

func TestStripTakesTheOldAddressFieldWhenThereIsNoOther(t *testing.T) {
	for _, tc := range []struct {
		in   corev1.PodStatus
		want []corev1.PodIP
	}{
		{corev1.PodStatus{}, nil},
		{corev1.PodStatus{PodIPs: []corev1.PodIP{}}, nil},
		{corev1.PodStatus{PodIP: "10.0.0.1"}, []corev1.PodIP{{IP: "10.0.0.1"}}},
		{corev1.PodStatus{PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "fd00::1"}}}, []corev1.PodIP{{IP: "fd00::1"}}},
	} {
		if got := newStripPod()(&corev1.Pod{Status: tc.in}).Status; !reflect.DeepEqual(got, corev1.PodStatus{PodIPs: tc.want}) {
			t.Errorf("%+v: got %+v, want addresses %v", tc.in, got, tc.want)
		}
	}
}

func TestStripKeepsOfOtherKindsWhatPolicyNeeds(t *testing.T) {
	bulky := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: "a", UID: "u", ResourceVersion: "7", Labels: map[string]string{"l": "1"},
			Annotations: map[string]string{"a": "1"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		}
	}
	slim := metav1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: "7"}
	labelled := slim
	labelled.Labels = map[string]string{"l": "1"}
	generation := func(m metav1.ObjectMeta) metav1.ObjectMeta { m.Generation = 3; return m }
	spec := networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Egress"}}

	ns := stripNamespace(newPool(equalLabels))(&corev1.Namespace{ObjectMeta: bulky(), Status: corev1.NamespaceStatus{Phase: "Active"}})
	if want := (&corev1.Namespace{ObjectMeta: labelled}); !reflect.DeepEqual(ns, want) {
		t.Errorf("got %+v, want %+v", ns, want)
	}
	node := stripNode(&corev1.Node{
		ObjectMeta: bulky(),
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.0.0.0/24"}, Unschedulable: true},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady}}},
	})
	if want := (&corev1.Node{ObjectMeta: slim, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.0.0.0/24"}}}); !reflect.DeepEqual(node, want) {
		t.Errorf("got %+v, want %+v", node, want)
	}
	p := stripNetworkPolicy(&networkingv1.NetworkPolicy{ObjectMeta: generation(bulky()), Spec: spec})
	if want := (&networkingv1.NetworkPolicy{ObjectMeta: generation(labelled), Spec: spec}); !reflect.DeepEqual(p, want) {
		t.Errorf("got %+v, want %+v", p, want)
	}
}

func TestTransformStripsWhatATombstoneHolds(t *testing.T) {
	f := transform(newStripPod())
	got, err := f(cache.DeletedFinalStateUnknown{Key: "k", Obj: realisticPod(1)})
	if err != nil {
		t.Fatal(err)
	}
	tombstone := got.(cache.DeletedFinalStateUnknown)
	if want := newStripPod()(realisticPod(1)); tombstone.Key != "k" || !reflect.DeepEqual(tombstone.Obj, want) {
		t.Errorf("got %+v, want %+v", tombstone, want)
	}
	for _, other := range []any{cache.DeletedFinalStateUnknown{Key: "k"}, &corev1.Node{}} {
		if got, err := f(other); err != nil || !reflect.DeepEqual(got, other) {
			t.Errorf("got %v, %v, want %v as it was", got, err, other)
		}
	}
}

func TestReplicasShareLabelsAndPorts(t *testing.T) {
	strip := newStripPod()
	a, b, other := strip(realisticPod(0)), strip(realisticPod(1)), strip(realisticPod(10))
	if reflect.ValueOf(a.Labels).Pointer() != reflect.ValueOf(b.Labels).Pointer() {
		t.Error("two replicas have labels of their own")
	}
	if &a.Spec.Containers[0] != &b.Spec.Containers[0] || &a.Spec.InitContainers[0] != &b.Spec.InitContainers[0] {
		t.Error("two replicas have ports of their own")
	}
	if reflect.DeepEqual(a.Labels, other.Labels) || &a.Spec.Containers[0] == &a.Spec.InitContainers[0] {
		t.Error("what differs is shared")
	}
}

func TestPoolForgetsWhatIsNotAskedFor(t *testing.T) {
	p := newPool(equalLabels)
	for i := range 5 * poolSize {
		l := map[string]string{"n": fmt.Sprint(i)}
		p.share(hashLabels(l), l)
	}
	if n := len(p.now) + len(p.old); n > 2*poolSize {
		t.Errorf("the pool holds %d values, want at most %d", n, 2*poolSize)
	}
}

func TestPoolTellsValuesOfOneHashApart(t *testing.T) {
	p := newPool(equalLabels)
	a, b := map[string]string{"a": "1"}, map[string]string{"b": "1"}
	for range 2 {
		if got := p.share(1, a); !reflect.DeepEqual(got, a) {
			t.Errorf("got %v, want %v", got, a)
		}
		if got := p.share(1, b); !reflect.DeepEqual(got, b) {
			t.Errorf("got %v, want %v", got, b)
		}
	}
}

// BenchmarkPodMemory reports the heap of a pod in an informer's store, as
// decoded from the wire and as stripped.
func BenchmarkPodMemory(b *testing.B) {
	const pods = 10_000
	whole := func(p *corev1.Pod) *corev1.Pod { return p }
	for _, bc := range []struct {
		name  string
		strip func(*corev1.Pod) *corev1.Pod
	}{{"whole", whole}, {"stripped", newStripPod()}} {
		b.Run(bc.name, func(b *testing.B) {
			for b.Loop() {
				store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
				before := heap()
				for i := range pods {
					wire, err := realisticPod(i).Marshal()
					if err != nil {
						b.Fatal(err)
					}
					p := &corev1.Pod{}
					if err := p.Unmarshal(wire); err != nil {
						b.Fatal(err)
					}
					if err := store.Add(bc.strip(p)); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(heap()-before)/pods, "B/pod")
				runtime.KeepAlive(store)
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
