package reachability

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// busy returns a cluster with workloads in 50 namespaces. Each namespace has a default
// deny, and policies allow single workloads different peers and ports.
func busy(workloads, replicas, policies int) clusterstate.Input {
	const namespaces, nodes = 50, 20
	in := clusterstate.Input{Features: compile.AllFeatures()}
	for i := range nodes {
		in.Nodes = append(in.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}, Spec: corev1.NodeSpec{PodCIDR: fmt.Sprintf("10.%d.0.0/16", i)}})
	}
	app := func(i int) map[string]string { return map[string]string{"app": fmt.Sprint("app-", i)} }
	for i := range namespaces {
		name := fmt.Sprint("ns-", i)
		in.Namespaces = append(in.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": fmt.Sprint("team-", i%10)}}})
		in.Policies = append(in.Policies, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "closed"},
			Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
		})
	}
	for i := range workloads * replicas {
		w := i / replicas
		in.Pods = append(in.Pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns-", w%namespaces), Name: fmt.Sprintf("app-%d-%d", w, i%replicas), Labels: app(w)},
			Spec: corev1.PodSpec{NodeName: fmt.Sprint("n", i%nodes), Containers: []corev1.Container{{
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.%d.%d.%d", i%nodes, i/nodes/250, i/nodes%250+1)}}},
		})
	}
	for i := range policies - namespaces {
		port, name := intstr.FromInt(1000+i), intstr.FromString("http")
		in.Policies = append(in.Policies, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns-", i%namespaces), Name: fmt.Sprint("of-", i)},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: app(i)},
				Ingress: []networkingv1.NetworkPolicyIngressRule{
					{Ports: []networkingv1.NetworkPolicyPort{{Port: &port}}, From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}, PodSelector: &metav1.LabelSelector{MatchLabels: app(i + 1)}}}},
					{Ports: []networkingv1.NetworkPolicyPort{{Port: &name}}, From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprint("team-", i%10)}}}}},
				},
			},
		})
	}
	return in
}
