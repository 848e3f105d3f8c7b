package lint_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/lint"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// A misspelt label makes a policy select no pod, so its intended pod is not isolated.
func ExampleCheck() {
	findings := lint.Check(lint.Input{
		Features:   compile.AllFeatures(),
		Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}},
		Pods:       []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-0", Labels: map[string]string{"app": "db"}}}},
		Policies: []compile.Object{&networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "bd"}},
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			},
		}},
	})
	for _, f := range findings {
		fmt.Printf("%v %s %v: %s\n%s\n", f.Severity, f.Rule, f.Object, f.Message, f.Fix)
	}
	// Output:
	// info no-default-deny Namespace shop: no policy isolates shop/db-0
	// Add a policy with podSelector {} and policyTypes [Ingress] to the namespace.
	// warning selects-no-pod NetworkPolicy shop/db: app=bd matches no pod; near it there are pods with: app: db
	// Write the labels that the pods have.
}
