// Package cluster generates the objects of the measured clusters: many similar pods in many
// namespaces, and policies whose labels, blocks and ports match none of these pods.
package cluster

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// podsPerNamespace is the number of pods in a namespace, and on a node.
const podsPerNamespace = 100

// Port is the TCP port that pods serve and that policies name.
const Port = 8080

// NamespaceName returns the name of namespace i, counted from 0.
func NamespaceName(i int) string { return fmt.Sprintf("ns-%04d", i) }

// Namespaces returns the namespaces of a cluster with that many pods.
func Namespaces(pods int) []*corev1.Namespace {
	namespaces := make([]*corev1.Namespace, pods/podsPerNamespace)
	for i := range namespaces {
		namespaces[i] = &corev1.Namespace{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: NamespaceName(i), Labels: map[string]string{
				corev1.LabelMetadataName: NamespaceName(i),
				"team":                   fmt.Sprintf("team-%d", i%10),
				"env":                    []string{"prod", "dev"}[i%2],
			}},
		}
	}
	return namespaces
}

// Pods returns the pods of a cluster with n pods. Pod 0 is in namespace 0 and on node-0. No
// two pods have the same labels.
func Pods(n int) []*corev1.Pod {
	pods, groups := make([]*corev1.Pod, n), n/podsPerNamespace
	for i := range pods {
		pods[i] = Pod(i, groups)
	}
	return pods
}

// Pod returns pod i of a cluster with that many namespaces and as many nodes.
func Pod(i, namespaces int) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: NamespaceName(i % namespaces),
			Name:      fmt.Sprintf("pod-%06d", i),
			Labels: map[string]string{
				"app":               fmt.Sprintf("app-%d", i/namespaces%20),
				"tier":              []string{"web", "api", "db"}[i%3],
				"pod-template-hash": fmt.Sprintf("%08x", i),
			},
		},
		Spec: corev1.PodSpec{
			NodeName: fmt.Sprintf("node-%d", i%namespaces),
			Containers: []corev1.Container{{
				Name:  "server",
				Image: "server",
				Ports: []corev1.ContainerPort{
					{Name: "http", ContainerPort: Port, Protocol: corev1.ProtocolTCP},
					{Name: "metrics", ContainerPort: 9090, Protocol: corev1.ProtocolTCP},
				},
			}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: Addr(i).String()}}},
	}
}

// Addr returns the address of pod i.
func Addr(i int) netip.Addr {
	i++
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// Policies returns n policies for ingress that select every pod of a namespace. Each has
// labels, an address range and a port, and none of their rules matches a pod of the
// cluster.
func Policies(namespace string, n int) []*networkingv1.NetworkPolicy {
	policies := make([]*networkingv1.NetworkPolicy, n)
	port := intstr.FromInt32(Port)
	for j := range policies {
		policies[j] = newPolicy(namespace, fmt.Sprintf("np-%05d", j), networkingv1.NetworkPolicyIngressRule{
			Ports: []networkingv1.NetworkPolicyPort{{Port: &port}},
			From: []networkingv1.NetworkPolicyPeer{
				{
					NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprintf("absent-%d", j)}},
					PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "api"}},
				},
				{IPBlock: &networkingv1.IPBlock{CIDR: "192.168.0.0/16", Except: []string{"192.168.1.0/24"}}},
			},
		})
	}
	return policies
}

// Allowing returns a policy for ingress that selects every pod of a namespace and allows
// another namespace. Ordered by name, it follows Policies.
func Allowing(namespace, from string) *networkingv1.NetworkPolicy {
	return newPolicy(namespace, "np-allow", networkingv1.NetworkPolicyIngressRule{
		From: []networkingv1.NetworkPolicyPeer{{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: from}},
		}},
	})
}

func newPolicy(namespace, name string, rule networkingv1.NetworkPolicyIngressRule) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{rule},
		},
	}
}
