package lint

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// large returns a cluster with isolated namespaces. Policies allow each workload the next
// two workloads of its namespace, DNS and metrics. Each policy contains a mistake of its
// own, and several rules look at it.
func large(namespaces, workloads, policies int) Input {
	in := Input{Features: compile.AllFeatures(), Partial: true}
	label := func(i int) map[string]string {
		return map[string]string{"app": fmt.Sprintf("app-%d", i), "team": fmt.Sprintf("team-%d", i%5)}
	}
	selector := func(i int) *metav1.LabelSelector { return &metav1.LabelSelector{MatchLabels: label(i)} }
	add := func(ns, name string, spec networkingv1.NetworkPolicySpec) {
		in.Policies = append(in.Policies, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: spec})
	}
	http := []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString("http"))}}
	policyTypes := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	perNamespace := workloads / namespaces
	for n := range namespaces {
		ns := fmt.Sprintf("ns-%d", n)
		in.Namespaces = append(in.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{corev1.LabelMetadataName: ns}}})
		for i := range perNamespace {
			in.Pods = append(in.Pods, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("pod-%d", i), Labels: label(i)},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}},
				Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.%d.%d.%d", n, i/250, i%250+1)}}},
			})
			in.Services = append(in.Services, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("app-%d", i)},
				Spec:       corev1.ServiceSpec{Selector: label(i), Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}}},
			})
		}
		add(ns, "default-deny", networkingv1.NetworkPolicySpec{PolicyTypes: policyTypes})
		for i := range policies/namespaces - 1 {
			add(ns, fmt.Sprintf("app-%d", i), networkingv1.NetworkPolicySpec{
				PodSelector: *selector(i), PolicyTypes: policyTypes,
				Ingress: []networkingv1.NetworkPolicyIngressRule{
					{From: []networkingv1.NetworkPolicyPeer{{PodSelector: selector(i + 1)}, {PodSelector: selector(i + 2)}}, Ports: http},
					{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}, Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(9090))}}},
				},
				Egress: []networkingv1.NetworkPolicyEgressRule{
					{To: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprintf("team-%d", i%5)}}}}, Ports: http},
				},
			})
		}
	}
	return in
}

// BenchmarkCheck checks a cluster of 1,000 workloads and 300 policies, in one namespace and
// in ten.
func BenchmarkCheck(b *testing.B) {
	for _, namespaces := range []int{1, 10} {
		in := large(namespaces, 1000, 300)
		b.Run(fmt.Sprintf("namespaces=%d", namespaces), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Check(in)
			}
			b.ReportMetric(float64(len(Check(in))), "findings")
		})
	}
}
