package clusterstate

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// busy is a cluster of n pods, with a hundred pods in each namespace and on each node.
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
