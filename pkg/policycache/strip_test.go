package policycache

import (
	"fmt"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

func newStripPod() func(*corev1.Pod) *compile.Pod {
	strip := stripPod(newPool(equalLabels), newPool(slices.Equal[[]policy.NamedPort]))
	return func(p *corev1.Pod) *compile.Pod { return strip(p).(*compile.Pod) }
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
	untouched := in.DeepCopy()
	got := newStripPod()(in)
	want := &compile.Pod{
		Endpoint: policy.Endpoint{Namespace: in.Namespace, Name: in.Name, Labels: in.Labels, Ports: []policy.NamedPort{
			{Name: "http", Port: 8080, Proto: packet.TCP},
			{Name: "http-metrics", Port: 8081, Proto: packet.TCP},
			{Name: "proxy", Port: 15000, Proto: packet.TCP},
			{Name: "proxy-metrics", Port: 15001, Proto: packet.TCP},
		}},
		UID: in.UID, Node: in.Spec.NodeName, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")},
		Created: in.CreationTimestamp.Unix(), Terminating: true,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if !reflect.DeepEqual(in, untouched) {
		t.Error("the object given was modified")
	}
}

func TestStripKeepsOfOtherKindsWhatPolicyNeeds(t *testing.T) {
	bulky := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: "a", UID: "u", ResourceVersion: "7", Labels: map[string]string{"l": "1"},
			Annotations: map[string]string{"a": "1"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		}
	}
	slim := metav1.ObjectMeta{Name: "a"}
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
	addresses := []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.168.0.1"}, {Type: corev1.NodeHostName, Address: "a"},
		{Type: corev1.NodeExternalIP, Address: "2001:db8::1"}, {Type: corev1.NodeInternalDNS, Address: "a.example"}, {Type: corev1.NodeExternalIP},
	}
	peer := stripPeerNode(&corev1.Node{
		ObjectMeta: bulky(),
		Spec:       corev1.NodeSpec{PodCIDR: "10.0.0.0/24", Unschedulable: true},
		Status:     corev1.NodeStatus{Addresses: addresses, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady}}},
	})
	if want := (&corev1.Node{
		ObjectMeta: labelled,
		Spec:       corev1.NodeSpec{PodCIDR: "10.0.0.0/24"},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{addresses[0], addresses[2]}},
	}); !reflect.DeepEqual(peer, want) {
		t.Errorf("got %+v, want %+v", peer, want)
	}
	p := stripNetworkPolicy(&networkingv1.NetworkPolicy{ObjectMeta: generation(bulky()), Spec: spec})
	if want := (&networkingv1.NetworkPolicy{ObjectMeta: generation(slim), Spec: spec}); !reflect.DeepEqual(p, want) {
		t.Errorf("got %+v, want %+v", p, want)
	}
	admin := stripAdminNetworkPolicy(&v1alpha1.AdminNetworkPolicy{
		ObjectMeta: generation(bulky()),
		Spec:       v1alpha1.AdminNetworkPolicySpec{Priority: 7},
		Status:     v1alpha1.AdminNetworkPolicyStatus{Conditions: []metav1.Condition{{}}},
	})
	if want := (&v1alpha1.AdminNetworkPolicy{ObjectMeta: generation(slim), Spec: v1alpha1.AdminNetworkPolicySpec{Priority: 7}}); !reflect.DeepEqual(admin, want) {
		t.Errorf("got %+v, want %+v", admin, want)
	}
	ingress := []v1alpha1.BaselineAdminNetworkPolicyIngressRule{{Action: v1alpha1.BaselineAdminNetworkPolicyRuleActionDeny}}
	baseline := stripBaselineAdminNetworkPolicy(&v1alpha1.BaselineAdminNetworkPolicy{
		ObjectMeta: generation(bulky()),
		Spec:       v1alpha1.BaselineAdminNetworkPolicySpec{Ingress: ingress},
		Status:     v1alpha1.BaselineAdminNetworkPolicyStatus{Conditions: []metav1.Condition{{}}},
	})
	if want := (&v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: generation(slim), Spec: v1alpha1.BaselineAdminNetworkPolicySpec{Ingress: ingress}}); !reflect.DeepEqual(baseline, want) {
		t.Errorf("got %+v, want %+v", baseline, want)
	}
	cluster := stripClusterNetworkPolicy(&v1alpha2.ClusterNetworkPolicy{
		ObjectMeta: generation(bulky()),
		Spec:       v1alpha2.ClusterNetworkPolicySpec{Tier: v1alpha2.AdminTier},
		Status:     v1alpha2.ClusterNetworkPolicyStatus{Conditions: []metav1.Condition{{}}},
	})
	if want := (&v1alpha2.ClusterNetworkPolicy{ObjectMeta: generation(slim), Spec: v1alpha2.ClusterNetworkPolicySpec{Tier: v1alpha2.AdminTier}}); !reflect.DeepEqual(cluster, want) {
		t.Errorf("got %+v, want %+v", cluster, want)
	}
}

func TestReplicasShareLabelsAndPorts(t *testing.T) {
	strip := newStripPod()
	a, b, other := strip(realisticPod(0)).Endpoint, strip(realisticPod(1)).Endpoint, strip(realisticPod(10)).Endpoint
	if reflect.ValueOf(a.Labels).Pointer() != reflect.ValueOf(b.Labels).Pointer() {
		t.Error("two replicas have labels of their own")
	}
	if &a.Ports[0] != &b.Ports[0] {
		t.Error("two replicas have ports of their own")
	}
	if reflect.DeepEqual(a.Labels, other.Labels) {
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

// BenchmarkPodMemory reports the heap of a pod that was read from the wire: in
// an informer's store as it is, and in a Cluster with a snapshot of it.
func BenchmarkPodMemory(b *testing.B) {
	const pods = 100_000
	measure := func(b *testing.B, take func(*corev1.Pod), kept any) {
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
			take(p)
		}
		b.ReportMetric(float64(heap()-before)/pods, "B/pod")
		runtime.KeepAlive(kept)
	}
	b.Run("informer", func(b *testing.B) {
		for b.Loop() {
			store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
			measure(b, func(p *corev1.Pod) { _ = store.Add(p) }, store)
		}
	})
	b.Run("cluster", func(b *testing.B) {
		for b.Loop() {
			c := compile.NewCluster(compile.Config{NodeName: "node-0000", Features: compile.AllFeatures()})
			strip := newStripPod()
			var last *policy.Snapshot
			measure(b, func(p *corev1.Pod) {
				c.Set(strip(p))
				if last == nil || p.Spec.NodeName == "node-0999" {
					last = c.Snapshot()
				}
			}, []any{c, &last})
		}
	})
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
