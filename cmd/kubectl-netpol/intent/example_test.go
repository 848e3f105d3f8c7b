package intent_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/intent"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

// An expectation that does not hold because there is no policy.
func ExampleEvaluate() {
	pod := func(name, ip string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}},
		}
	}
	in := clusterstate.Input{Pods: []*corev1.Pod{pod("web", "10.0.0.1"), pod("db", "10.0.0.2")}}
	expectations, err := intent.Parse("expectations.yaml", []byte(`
apiVersion: kube-network-policies.x-k8s.io/v1alpha1
kind: Expectations
expectations:
- {from: shop/web, to: shop/db, port: 5432, expect: deny}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	results, err := intent.Evaluate(in, reachability.New(in), expectations, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range results {
		fmt.Printf("%s:%d holds: %v\n", r.File, r.Line, r.Holds())
		for _, f := range r.Failures {
			fmt.Printf("%s -> %s: %s\n", f.From, f.To, f.Reason)
		}
	}
	// Output:
	// expectations.yaml:5 holds: false
	// shop/web -> shop/db: egress of shop/web: no policy selects the pod for egress; ingress of shop/db: no policy selects the pod for ingress
}
