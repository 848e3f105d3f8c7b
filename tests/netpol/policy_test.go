package netpol

import (
	"encoding/json"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
)

// TestPolicyPartsMatchYAML compares every part of a policy with its YAML.
func TestPolicyPartsMatchYAML(t *testing.T) {
	for _, c := range []struct {
		name  string
		parts []Part
		yaml  string
	}{
		{"nothing", nil, `{podSelector: {}}`},
		{"subject", []Part{Subject("pod=a"), DenyIngress()}, `{podSelector: {matchLabels: {pod: a}}, policyTypes: [Ingress]}`},
		{"both directions", []Part{DenyIngress(), DenyEgress()}, `{podSelector: {}, policyTypes: [Ingress, Egress]}`},
		{"anyone", []Part{Ingress()}, `{podSelector: {}, policyTypes: [Ingress], ingress: [{}]}`},
		{
			"peers are alternatives",
			[]Part{Ingress(From(Pods("pod=a"), Namespaces("ns=y")))},
			`{podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {pod: a}}}, {namespaceSelector: {matchLabels: {ns: "y"}}}]}]}`,
		}, {
			"one peer is one sentence",
			[]Part{Ingress(From(Pods("pod=a").InNamespaces("ns=y")))},
			`{podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {pod: a}}, namespaceSelector: {matchLabels: {ns: "y"}}}]}]}`,
		}, {
			"expressions",
			[]Part{Egress(To(Pods("pod in (a,b),!old")))},
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchExpressions: [{key: old, operator: DoesNotExist}, {key: pod, operator: In, values: [a, b]}]}}]}]}`,
		}, {
			"blocks",
			[]Part{Egress(To(Block("10.0.0.0/8").Except("10.1.0.0/16")))},
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]}`,
		}, {
			"ports",
			[]Part{Ingress(At(TCP(80), UDP(0), Traffic{Port: 81}, Range("TCP", 1, 9), Named("", "web")))},
			`{podSelector: {}, policyTypes: [Ingress], ingress: [{ports: [{protocol: TCP, port: 80}, {protocol: UDP}, {port: 81}, {protocol: TCP, port: 1, endPort: 9}, {port: web}]}]}`,
		}, {
			"two rules",
			[]Part{Ingress(At(TCP(80))), Ingress(From(Pods("")))},
			`{podSelector: {}, policyTypes: [Ingress], ingress: [{ports: [{protocol: TCP, port: 80}]}, {from: [{podSelector: {}}]}]}`,
		},
		{"types", []Part{Egress(), Types(networkingv1.PolicyTypeIngress)}, `{podSelector: {}, policyTypes: [Ingress], egress: [{}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _ := json.Marshal(NewPolicy("x", "p", c.parts...))
			want, _ := json.Marshal(PolicyYAML("x", "p", c.yaml))
			if string(got) != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}
