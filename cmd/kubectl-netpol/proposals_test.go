package main

import (
	"strings"
	"testing"
)

// Service accounts are read by all commands, in pods of manifests and of workloads.
func TestServiceAccounts(t *testing.T) {
	const cluster = `
apiVersion: v1
kind: Pod
metadata: {namespace: n, name: web, labels: {app: web}}
spec: {serviceAccountName: web, containers: [{name: c, image: i}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: n, name: job}
spec:
  selector: {matchLabels: {app: job}}
  template:
    metadata: {labels: {app: job}}
    spec: {serviceAccountName: job, containers: [{name: c, image: i}]}
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: jobs}
spec:
  tier: Admin
  priority: 10
  subject: {serviceAccounts: {namespaceSelector: {}, names: [web]}}
  ingress:
  - action: Deny
    from: [{serviceAccounts: {namespaceSelector: {}, names: [job, none]}}]
`
	const gate = " --feature-gates=ServiceAccounts=true"
	for _, tc := range []struct {
		command string
		code    int
		stdout  string
	}{
		{"check -f -", 1, "spec.subject.serviceAccounts: the field is one of proposal NPEP-173, and needs --feature-gates=ServiceAccounts=true; the policy selects no pod"},
		{"check -f -" + gate, 0, ""},
		{"explain n/job n/web --port 80 -f -" + gate, 1, "pods of service account job or none of all namespaces"},
		{"explain n/web n/web --port 80 -f -" + gate, 0, ""},
		{"explain n/job n/job --port 80 -f -" + gate, 0, ""},
	} {
		t.Run(tc.command, func(t *testing.T) {
			code, stdout, stderr := call(t, cluster, tc.command)

			if code != tc.code || !strings.Contains(stdout, tc.stdout) {
				t.Errorf("got %d, want %d and %q\n%s%s", code, tc.code, tc.stdout, stdout, stderr)
			}
		})
	}
}

// A field of a proposal is read by all commands. Without its gate it is reported, with the gate.
func TestFieldsOfProposals(t *testing.T) {
	t.Chdir("testdata")
	const policy = `
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: outside}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {podSelector: {matchLabels: {app: web}}}}
  ingress:
  - name: no-nodes
    action: Deny
    from:
    - nodes: {}
    - networks: [198.51.100.0/24]
`
	const gate = " --feature-gates=IngressByAddress=true"
	for _, tc := range []struct {
		command string
		code    int
		stdout  string
	}{
		{"check -f -", 1, "NPEP-127, and needs --feature-gates=IngressByAddress=true; the rule denies everything"},
		{"check -f -" + gate, 0, ""},
		{"explain 198.51.100.7 shop/web --port 8080 -f shop -f -" + gate, 1, "spec.ingress[0]"},
		{"explain 203.0.113.9 shop/web --port 8080 -f shop/cluster.yaml -f -" + gate, 0, ""},
		{"explain 203.0.113.9 shop/web --port 8080 -f shop/cluster.yaml -f -", 1, "spec.ingress[0]"},
		{"explain 192.168.0.2 shop/web --port 8080 -f shop/cluster.yaml -f -" + gate, 1, "spec.ingress[0]"},
		{"explain 192.168.0.1 shop/web --port 8080 -f shop/cluster.yaml -f -" + gate, 0, ""},
	} {
		t.Run(tc.command, func(t *testing.T) {
			code, stdout, stderr := call(t, policy, tc.command)

			if code != tc.code || !strings.Contains(stdout, tc.stdout) {
				t.Errorf("got %d, want %d and %q\n%s%s", code, tc.code, tc.stdout, stdout, stderr)
			}
		})
	}
}
