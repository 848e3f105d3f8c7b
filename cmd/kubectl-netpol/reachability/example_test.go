package reachability_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// Explain says why one pod cannot connect to another.
func ExampleCluster_Explain() {
	pod := func(name, ip string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}},
		}
	}
	c := reachability.New(clusterstate.Input{
		Features: compile.AllFeatures(),
		Pods:     []*corev1.Pod{pod("web", "10.0.0.1"), pod("db", "10.0.0.2")},
		Policies: []compile.Object{&networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "default-deny"},
			Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
		}},
	})
	web, err := c.Endpoint("shop/web")
	if err != nil {
		fmt.Println(err)
		return
	}
	db, err := c.Endpoint("shop/db")
	if err != nil {
		fmt.Println(err)
		return
	}
	port, err := reachability.ParsePort("5432", "TCP")
	if err != nil {
		fmt.Println(err)
		return
	}
	e := c.Explain(&web, &db, port, reachability.FirstCommon)
	fmt.Println(e.Reason)
	for _, d := range e.Directions {
		fmt.Printf("%s of %s: %s %v\n", d.Direction, d.Subject, d.Reason, d.Policies)
	}
	// Output:
	// denied by ingress of shop/db
	// egress of shop/web: no policy selects the pod for egress []
	// ingress of shop/db: NetworkPolicies isolate the pod and none of their rules matches [shop/default-deny]
}
