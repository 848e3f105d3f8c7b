package main

import (
	"os"
	"path/filepath"
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

// Groups of networks are read from files, and from a cluster if the user may.
func TestCIDRGroups(t *testing.T) {
	t.Chdir("testdata")
	const policy = `
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: partners}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {podSelector: {matchLabels: {app: web}}}}
  egress:
  - action: Deny
    to: [{cidrGroups: {names: [partners]}}]
`
	group := func(cidr string) string {
		return "---\n{apiVersion: policy.networking.k8s.io/v1alpha1, kind: CIDRGroup, metadata: {name: partners}, spec: {cidrs: [" + cidr + "]}}\n"
	}
	folder := t.TempDir()
	cluster, err := os.ReadFile("shop/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	both := policy + group("198.51.100.0/24")
	for name, text := range map[string]string{"policy": policy, "both": both, "whole": string(cluster) + "---" + both} {
		if err := os.WriteFile(filepath.Join(folder, name+".yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	everything := " --context shop --kubeconfig " + kubeconfig(t, server(t, everywhere, "shop", filepath.Join(folder, "both.yaml")).URL)
	noGroups := " --context shop --kubeconfig " + kubeconfig(t, server(t, except("cidrgroups"), "shop", filepath.Join(folder, "both.yaml")).URL)
	notServed := " --context shop --kubeconfig " + kubeconfig(t, server(t, everywhere, "shop", filepath.Join(folder, "policy.yaml")).URL)
	const (
		gate = " --feature-gates=CIDRGroups=true"
		to   = "explain shop/web 198.51.100.7 --port 80"
	)
	for _, tc := range []struct {
		name, stdin, command string
		code                 int
		output               string
	}{
		{"no gate", both, "check -f -", 1, "NPEP-182, and needs --feature-gates=CIDRGroups=true; the rule denies everything"},
		{"check", both, "check -f shop -f -" + gate, 0, ""},
		{"a group that is not in the files", policy, "check -f shop -f -" + gate, 0, `info: ClusterNetworkPolicy partners spec.egress[0].to[0].cidrGroups.names[0]: CIDRGroup "partners" is not known`},
		{"a group that a server refuses", policy + group("198.51.100.1/24"), "check -f -" + gate, 1, "spec.cidrs[0]"},
		{"denied", both, to + " -f shop -f -" + gate, 1, "spec.egress[0]"},
		{"another group", policy + group("203.0.113.0/24"), to + " -f shop/cluster.yaml -f -" + gate, 0, ""},
		{"a change of the group", group("203.0.113.0/24"), "diff --port 80 -f {whole} -f -" + gate, 1, "newly allowed: shop/web -> 198.51.100.0/24"},
		{"live", "", to + gate + everything, 1, "spec.egress[0]"},
		{"live, without the gate", "", to + everything, 1, "spec.egress[0]"},
		{"live, without the right", "", to + gate + noGroups, 1, "CIDRGroups could not be read: rules that refer to them deny more here"},
		{"live, not served", "", to + gate + notServed, 1, "spec.egress[0]"},
		{"live, applied", group("203.0.113.0/24"), "diff --port 80 -f -" + gate + everything, 1, "newly allowed: shop/web -> 198.51.100.0/24"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := call(t, tc.stdin, strings.ReplaceAll(tc.command, "{whole}", filepath.Join(folder, "whole.yaml")))

			if code != tc.code || !strings.Contains(stdout+stderr, tc.output) {
				t.Errorf("got %d, want %d and %q\n%s%s", code, tc.code, tc.output, stdout, stderr)
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
