package reachability

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Copies of a policy in two namespaces are equal rules if their peers are the same.
func TestEqualRulesOfTwoNamespaces(t *testing.T) {
	const all = `egress: [{to: [{namespaceSelector: {}}], ports: [{port: 80}]}]`
	for _, test := range []struct {
		name, x, y string
		want       bool
	}{
		{"copies", all, all, true},
		{"isolated", "", "", true},
		{"pods of each namespace", `egress: [{to: [{podSelector: {}}]}]`, `egress: [{to: [{podSelector: {}}]}]`, false},
		{"isolated or not", all, `{}`, false},
		{"ports", all, `egress: [{to: [{namespaceSelector: {}}], ports: [{port: 81}]}]`, false},
		{"ranges", all, `egress: [{to: [{namespaceSelector: {}}], ports: [{port: 80, endPort: 81}]}]`, false},
		{"protocols", all, `egress: [{to: [{namespaceSelector: {}}], ports: [{port: 80, protocol: UDP}]}]`, false},
		{"any port", all, `egress: [{to: [{namespaceSelector: {}}]}]`, false},
		{"any peer", all, `egress: [{ports: [{port: 80}]}]`, false},
		{"labels", all, `egress: [{to: [{namespaceSelector: {matchLabels: {a: b}}}], ports: [{port: 80}]}]`, false},
		{"blocks", `egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]`, `egress: [{to: [{ipBlock: {cidr: 10.0.0.0/9}}]}]`, false},
		{"exceptions", `egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]`, `egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := clusterstate.Input{Features: compile.AllFeatures(), Pods: []*corev1.Pod{pod("x/a", "n1", "10.0.0.1"), pod("y/a", "n1", "10.0.0.2")}}
			for namespace, spec := range map[string]string{"x": test.x, "y": test.y} {
				p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p"}}
				if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
					t.Fatal(err)
				}
				p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
				if spec == "{}" {
					p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
				}
				in.Policies = append(in.Policies, p)
			}
			c := New(in)
			x, err1 := c.Endpoint("x/a")
			y, err2 := c.Endpoint("y/a")
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			if got := c.Rules(&x, policy.Egress) == c.Rules(&y, policy.Egress); got != test.want {
				t.Errorf("equal is %v, want %v", got, test.want)
			}
		})
	}
}
