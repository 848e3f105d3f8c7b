package clusterstate_test

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// The agent of node-1 evaluates two packets to a pod that accepts only the pods app=web.
func ExampleCompile() {
	pod := func(app, node, ip string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: app, Labels: map[string]string{"app": app}},
			Spec:       corev1.PodSpec{NodeName: node},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}},
		}
	}
	selector := func(app string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	web := selector("web")
	snapshot := clusterstate.Compile(clusterstate.Input{
		NodeName: "node-1",
		Features: compile.AllFeatures(),
		Pods:     []*corev1.Pod{pod("db", "node-1", "10.0.1.2"), pod("web", "node-2", "10.0.2.2"), pod("guest", "node-2", "10.0.2.3")},
		Policies: []compile.Object{&networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: selector("db"),
				Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &web}}}},
			},
		}},
	})
	for _, src := range []string{"10.0.2.2:40000", "10.0.2.3:40000"} {
		p := packet.Packet{Proto: packet.TCP, Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort("10.0.1.2:5432")}
		fmt.Println(snapshot.Evaluate(policy.Query{Packet: p}))
	}
	// Output:
	// allow ingress by networkpolicy shop/db rule 0
	// deny ingress by networkpolicy shop/db, isolated
}
