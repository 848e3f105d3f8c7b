package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/speed/bench/cluster"
)

// input returns a cluster as the node of pod 0 sees it, with the given number of policies
// that select the pod.
func input(pods, policies int) clusterstate.Input {
	in := clusterstate.Input{
		NodeName:   "node-0",
		Features:   compile.AllFeatures(),
		Namespaces: cluster.Namespaces(pods),
		Pods:       cluster.Pods(pods),
	}
	for _, p := range cluster.Policies(cluster.NamespaceName(0), policies) {
		in.Policies = append(in.Policies, p)
	}
	return in
}

// segment returns the first packet of a TCP connection to pod 0.
func segment(src netip.Addr) []byte {
	b := make([]byte, 40)
	b[0], b[9] = 0x45, byte(packet.TCP)
	copy(b[12:], src.AsSlice())
	copy(b[16:], cluster.Addr(0).AsSlice())
	binary.BigEndian.PutUint16(b[20:], 40000)
	binary.BigEndian.PutUint16(b[22:], cluster.Port)
	b[32] = 5 << 4 // length of the header in units of 4 bytes
	b[33] = 0x02   // SYN
	return b
}

// evaluate parses and evaluates a packet.
func evaluate(tb testing.TB, s *policy.Snapshot, payload []byte) policy.Decision {
	p, err := packet.Parse(payload)
	if err != nil {
		tb.Fatal(err)
	}
	return s.Evaluate(policy.Query{Packet: p})
}

// mustDeny checks that the policies make the measured decision.
func mustDeny(tb testing.TB, s *policy.Snapshot, payload []byte) {
	tb.Helper()
	if d := evaluate(tb, s, payload); d.Action != policy.Deny || d.Reason != policy.Isolated {
		tb.Fatalf("%v, want a denial of every policy", d)
	}
}

// Every measured policy is evaluated, and only a further one may allow.
func TestMeasuredPoliciesDecide(t *testing.T) {
	const pods = 200
	for _, policies := range []int{1, 20, 100} {
		t.Run(fmt.Sprintf("%d policies", policies), func(t *testing.T) {
			in := input(pods, policies)
			mustDeny(t, clusterstate.Compile(in), segment(cluster.Addr(1)))
			in.Policies = append(in.Policies, cluster.Allowing(cluster.NamespaceName(0), cluster.NamespaceName(1)))
			s := clusterstate.Compile(in)
			if d := evaluate(t, s, segment(cluster.Addr(1))); !d.Allowed() || d.Reason != policy.RuleMatched {
				t.Errorf("with a further policy that allows: %v", d)
			}
			if d := evaluate(t, s, segment(cluster.Addr(2))); d.Action != policy.Deny {
				t.Errorf("a further policy allows another namespace: %v", d)
			}
		})
	}
}

// BenchmarkVerdict decides about one packet of a known peer, starting from its bytes.
func BenchmarkVerdict(b *testing.B) {
	for _, pods := range []int{1000, 100000} {
		for _, policies := range []int{1, 10000} {
			s := clusterstate.Compile(input(pods, policies))
			payload := segment(cluster.Addr(1))
			mustDeny(b, s, payload)
			b.Run(fmt.Sprintf("policies=%d/pods=%d", policies, pods), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					evaluate(b, s, payload)
				}
			})
		}
	}
}

// distinguishing returns a policy by which every pod is evaluated for itself: it lists the label
// of each.
func distinguishing(pods []*corev1.Pod) *networkingv1.NetworkPolicy {
	const label = "pod-template-hash"
	values := make([]string, len(pods))
	for i, p := range pods {
		values[i] = p.Labels[label]
	}
	other := intstr.FromInt32(cluster.Port + 1)
	p := cluster.Policies(cluster.NamespaceName(0), 1)[0]
	p.Name = "distinguishing"
	p.Spec.Ingress[0] = networkingv1.NetworkPolicyIngressRule{
		Ports: []networkingv1.NetworkPolicyPort{{Port: &other}},
		From: []networkingv1.NetworkPolicyPeer{{
			NamespaceSelector: &metav1.LabelSelector{},
			PodSelector:       &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: label, Operator: metav1.LabelSelectorOpIn, Values: values}}},
		}},
	}
	return p
}

// BenchmarkFirstPacket decides about the first packet of a peer whose labels were not evaluated
// before, or are not remembered because too many others were since.
func BenchmarkFirstPacket(b *testing.B) {
	const pods, policies = 100000, 10000
	in := input(pods, policies)
	in.Policies = append(in.Policies, distinguishing(in.Pods))
	s := clusterstate.Compile(in)
	payload := segment(cluster.Addr(1))
	mustDeny(b, s, payload)
	b.Run(fmt.Sprintf("policies=%d/pods=%d", policies, pods), func(b *testing.B) {
		payload := slices.Clone(payload)
		next := 2
		b.ReportAllocs()
		for b.Loop() {
			copy(payload[12:], cluster.Addr(next%pods).AsSlice())
			next++
			evaluate(b, s, payload)
		}
	})
}

// BenchmarkSharedPeers is BenchmarkPeers with thirty pods for each set of labels, like
// those of a Deployment. In BenchmarkPeers no two pods have the same labels.
func BenchmarkSharedPeers(b *testing.B) {
	const pods, policies = 100001, 10000
	in := input(pods, policies)
	for _, pod := range in.Pods {
		pod.Labels = map[string]string{"tier": pod.Labels["tier"]}
	}
	s := clusterstate.Compile(in)
	for _, peers := range []int{1, 2048, 100000} {
		b.Run(fmt.Sprintf("policies=%d/peers=%d", policies, peers), func(b *testing.B) {
			payload := segment(cluster.Addr(1))
			for i := range peers { // all are known when the measurement begins
				copy(payload[12:], cluster.Addr(1+i).AsSlice())
				mustDeny(b, s, payload)
			}
			next := 0
			b.ReportAllocs()
			for b.Loop() {
				copy(payload[12:], cluster.Addr(1+next%peers).AsSlice())
				next++
				evaluate(b, s, payload)
			}
		})
	}
}

// BenchmarkPeers is BenchmarkVerdict with many peers in turn.
func BenchmarkPeers(b *testing.B) {
	const pods = 100001
	for _, policies := range []int{1, 20, 1000, 10000} {
		s := clusterstate.Compile(input(pods, policies))
		for _, peers := range []int{1, 2048, 100000} {
			b.Run(fmt.Sprintf("policies=%d/peers=%d", policies, peers), func(b *testing.B) {
				payload := segment(cluster.Addr(1))
				for i := range peers { // all are known when the measurement begins
					copy(payload[12:], cluster.Addr(1+i).AsSlice())
					mustDeny(b, s, payload)
				}
				next := 0
				b.ReportAllocs()
				for b.Loop() {
					copy(payload[12:], cluster.Addr(1+next%peers).AsSlice())
					next++
					evaluate(b, s, payload)
				}
			})
		}
	}
}
