package clusterstate

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// busy is a cluster of n pods, with a hundred pods in each namespace and on each node. The pods of
// node-0 are local; pod 0 of ns-0000 is the destination of every benchmark and pod 1 of ns-0001 its
// client.
func busy(n int) Input {
	in := Input{NodeName: "node-0", Features: compile.AllFeatures()}
	namespaces := n / 100
	for i := range namespaces {
		name := fmt.Sprintf("ns-%04d", i)
		in.Namespaces = append(in.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"kubernetes.io/metadata.name": name,
			"team":                        fmt.Sprintf("team-%d", i%10),
			"env":                         []string{"prod", "dev"}[i%2],
		}}})
	}
	for i := range n {
		addr := netip.AddrFrom4([4]byte{10, byte((i + 1) >> 16), byte((i + 1) >> 8), byte(i + 1)})
		in.Pods = append(in.Pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: fmt.Sprintf("ns-%04d", i%namespaces),
				Name:      fmt.Sprintf("pod-%06d", i),
				Labels: map[string]string{
					"app":               fmt.Sprintf("app-%d", i/namespaces%20),
					"tier":              []string{"web", "api", "db"}[i%3],
					"pod-template-hash": fmt.Sprintf("%08x", i),
				},
			},
			Spec: corev1.PodSpec{
				NodeName: fmt.Sprintf("node-%d", i%namespaces),
				Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
					{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP},
					{Name: "metrics", ContainerPort: 9090, Protocol: corev1.ProtocolTCP},
				}}},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: addr.String()}}},
		})
	}
	return in
}

// withPolicies adds n policies whose rules never match: all of them select pod 0 ("all"), only the
// first one does ("one"), or they are spread over the namespaces ("spread").
func (in Input) withPolicies(shape string, n int) Input {
	for j := range n {
		namespace, subject := "ns-0000", metav1.LabelSelector{}
		switch {
		case shape == "one" && j > 0:
			subject.MatchLabels = map[string]string{"app": fmt.Sprintf("none-%d", j)}
		case shape == "spread":
			namespace = in.Namespaces[j%len(in.Namespaces)].Name
		}
		port := intstr.FromInt32(8080)
		in.Policies = append(in.Policies, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("np-%05d", j)},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: subject,
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
				Ingress: []networkingv1.NetworkPolicyIngressRule{{
					Ports: []networkingv1.NetworkPolicyPort{{Port: &port}},
					From: []networkingv1.NetworkPolicyPeer{
						{
							NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprintf("absent-%d", j)}},
							PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "api"}},
						},
						{IPBlock: &networkingv1.IPBlock{CIDR: "192.168.0.0/16", Except: []string{"192.168.1.0/24"}}},
					},
				}},
			},
		})
	}
	return in
}

var firstPacket = packet.Packet{
	Src: netip.MustParseAddrPort("10.0.0.2:40000"), Dst: netip.MustParseAddrPort("10.0.0.1:8080"), Proto: packet.TCP,
}

func BenchmarkEvaluate(b *testing.B) {
	for _, pods := range []int{1000, 100000} {
		in := busy(pods)
		for _, shape := range []string{"none", "all", "one", "spread"} {
			for _, n := range []int{1, 100, 1000, 10000} {
				if shape == "none" && n > 1 {
					continue
				}
				b.Run(fmt.Sprintf("%s/policies=%d/pods=%d", shape, n, pods), func(b *testing.B) {
					cluster, want := in.withPolicies(shape, n), policy.Deny
					if shape == "none" {
						cluster, want = in, policy.Allow
					}
					s := Compile(cluster)
					if got := s.Evaluate(policy.Query{Packet: firstPacket}); got.Action != want {
						b.Fatalf("%v: %v, want %v", firstPacket, got, want)
					}
					b.ReportAllocs()
					for b.Loop() {
						s.Evaluate(policy.Query{Packet: firstPacket})
					}
				})
			}
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, pods := range []int{1000, 100000} {
		for _, n := range []int{1, 10000} {
			b.Run(fmt.Sprintf("policies=%d/pods=%d", n, pods), func(b *testing.B) {
				in := busy(pods).withPolicies("spread", n)
				b.ReportAllocs()
				for b.Loop() {
					Compile(in)
				}
			})
		}
	}
}

// BenchmarkChange measures one change including the snapshot: of a pod of another node, of a pod of
// this node, and of a policy. The worst case is the last of many policies that select the same
// pods.
func BenchmarkChange(b *testing.B) {
	for _, pods := range []int{1000, 100000} {
		for _, shape := range []string{"spread", "all"} {
			in := busy(pods).withPolicies(shape, 10000)
			for name, next := range map[string]func(in Input, i int) any{
				"remote-pod": func(in Input, i int) any { return relabelled(in.Pods[7], i) },
				"local-pod":  func(in Input, i int) any { return relabelled(in.Pods[0], i) },
				"policy":     func(in Input, i int) any { return reported(in.Policies[0].(*networkingv1.NetworkPolicy), i) },
			} {
				b.Run(fmt.Sprintf("%s/%s/policies=10000/pods=%d", name, shape, pods), func(b *testing.B) {
					c := clusterOf(in)
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						c.Set(next(in, i))
						c.Snapshot()
					}
				})
			}
		}
	}
}

// relabelled returns p with a different label.
func relabelled(p *corev1.Pod, i int) *compile.Pod {
	pod := compile.NewPod(p)
	pod.Endpoint.Labels = policy.NewLabels(map[string]string{"app": p.Labels["app"], "tier": p.Labels["tier"], "release": fmt.Sprint(i)})
	return pod
}

// reported returns p with a different port.
func reported(p *networkingv1.NetworkPolicy, i int) *networkingv1.NetworkPolicy {
	p = p.DeepCopy()
	port := intstr.FromInt(1 + i%60000)
	p.Spec.Ingress[0].Ports[0].Port = &port
	return p
}

// BenchmarkClusterMemory measures the heap per pod of a cluster and one snapshot.
func BenchmarkClusterMemory(b *testing.B) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		in := busy(100000)
		before := heap()
		c := clusterOf(in)
		b.ReportMetric(float64(heap()-before)/100000, "B/pod")
		runtime.KeepAlive(c)
		runtime.KeepAlive(in)
	}
}
