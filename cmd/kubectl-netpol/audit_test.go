package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// auditedCluster has two pods. An audited policy would isolate x/web.
const auditedCluster = `
{apiVersion: v1, kind: Namespace, metadata: {name: x}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: x, name: web, labels: {app: web}}, spec: {nodeName: n, containers: [{name: c, image: i}]}, status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: x, name: db}, spec: {nodeName: n, containers: [{name: c, image: i}]}, status: {phase: Running, podIP: 10.0.0.2, podIPs: [{ip: 10.0.0.2}]}}
---
` + auditedPolicy

const auditedPolicy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: x, name: closed, annotations: {kube-network-policies.x-k8s.io/enforcement: audit}}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
`

// TestAuditedPoliciesHaveTwoAnswers: the enforced policies give the answer, and it also
// says what audited policies would change.
func TestAuditedPoliciesHaveTwoAnswers(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	enforced := strings.Replace(auditedCluster, "enforcement: audit", "enforcement: enforce", 1)
	for name, text := range map[string]string{
		"audited.yaml": auditedCluster, "enforced.yaml": enforced,
		"policy.yaml": auditedPolicy, "open.yaml": strings.Split(auditedCluster, "apiVersion: networking")[0],
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const changes = "If audited policies were enforced, "
	for _, tc := range []struct {
		name, command  string
		code           int
		stdout, stderr string // substrings
		one            bool   // only one answer
	}{
		{"explain", "explain x/db x/web --port 80 -f audited.yaml", 0,
			"x/db -> x/web, TCP 80: allowed\n", "", false},
		{"explain, the other answer", "explain x/db x/web --port 80 -f audited.yaml", 0,
			"\nIf audited policies were enforced: denied\nDenied by ingress of x/web.\n", "", false},
		{"explain, a pair that it does not select", "explain x/web x/db --port 80 -f audited.yaml", 0,
			"allowed", "", true},
		{"explain, enforced", "explain x/db x/web --port 80 -f enforced.yaml", 1,
			"denied", "", true},
		{"explain as JSON", "explain x/db x/web --port 80 -o json -f audited.yaml", 0,
			`"ifEnforced": {`, "", false},
		{"matrix", "matrix --port 80 -f audited.yaml", 0, "", changes + "TCP 80 no longer allowed: new namespace/new pod, x/db, x/new pod, outside -> x/web, by x/closed", false},
		{"matrix of all ports", "matrix -f audited.yaml", 0, "", changes, false},
		{"matrix as JSON", "matrix --port 80 -o json -f audited.yaml", 0, `"allowed":false,"by":["x/closed"]}`, "", false},
		{"matrix, enforced", "matrix --port 80 -f enforced.yaml", 0, "", "", true},
		{"diff", "diff -f open.yaml -f policy.yaml", 0, "Nothing changes.", changes, false},
		{"diff as JSON", "diff -f open.yaml -f policy.yaml -o json", 0, `"ifEnforced": [`, "", false},
		{"diff as markdown", "diff -f open.yaml -f policy.yaml -o markdown", 0, changes, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := call(t, "", tc.command)
			if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("status %d, want %d\n%s\n%s\nwant %q and %q", code, tc.code, stdout, stderr, tc.stdout, tc.stderr)
			}
			if all := stdout + stderr; tc.one && (strings.Contains(all, "If audited") || strings.Contains(all, "ifEnforced")) {
				t.Errorf("want one answer, got two:\n%s", all)
			}
		})
	}
}
