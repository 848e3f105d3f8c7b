package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// BenchmarkLarge runs commands on clusters of 1,000 policies and 5,000 pods, and of ten times as
// many, each in a process of its own. It reports the user time and the memory of the process.
func BenchmarkLarge(b *testing.B) {
	plugin := filepath.Join(b.TempDir(), "kubectl-netpol")
	if out, err := exec.Command("go", "build", "-o", plugin, ".").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	for _, size := range []int{1, 10} {
		dir := b.TempDir()
		writeLarge(b, dir, 50*size)
		for _, command := range []string{
			"check",
			"matrix --by namespace",
			"diff -f change.yaml",
			"view -n ns-1 -o html",
			"list",
			"explain ns-1/app-0-0 ns-1/app-1-0 --port 8080",
			"assert intent.yaml",
			"suggest -n ns-1 --records flows.jsonl",
		} {
			name, flags, _ := strings.Cut(command, " ")
			b.Run(fmt.Sprintf("%s/policies=%d/pods=%d", name, 1000*size, 5000*size), func(b *testing.B) {
				var user, memory float64
				for b.Loop() {
					cmd := exec.Command(plugin, append([]string{name, "-f", "cluster"}, strings.Fields(flags)...)...)
					cmd.Dir = dir
					var failed *exec.ExitError
					if out, err := cmd.Output(); errors.As(err, &failed) && failed.ExitCode() == exitError || err != nil && failed == nil {
						b.Fatalf("%v: %s%s", err, out, failed.Stderr)
					}
					user += cmd.ProcessState.UserTime().Seconds()
					memory = max(memory, float64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss)/1024)
				}
				b.ReportMetric(user/float64(b.N), "user-s/op")
				b.ReportMetric(memory, "MB")
			})
		}
	}
}

// writeLarge writes the cluster, a policy to apply to it, an expectation and records of flows.
// Namespaces have 20 workloads of 5 pods, which run on 2 nodes, and 20 policies.
func writeLarge(b *testing.B, dir string, namespaces int) {
	files := map[string]string{
		"change.yaml": largePolicy("ns-1", "app-1", `
  ingress:
  - from: [{podSelector: {matchLabels: {app: app-3}}}]`),
		"intent.yaml": `apiVersion: kube-network-policies.x-k8s.io/v1alpha1
kind: Expectations
expectations:
- {from: {namespaceSelector: {}}, to: ns-1/app-1, port: 8080, expect: deny}
`,
	}
	var flows strings.Builder
	for i := range 20 {
		fmt.Fprintf(&flows, `{"type":"flow","node":"node-2","source":{"namespace":"ns-1","pod":"app-%d-0","address":%q},"destination":{"namespace":"ns-1","pod":"app-%d-0","address":%q},"protocol":"TCP","port":8080,"verdict":"allow","direction":"ingress","tier":"default","reason":"not selected","count":1,"first":"2026-01-02T03:04:05Z","last":"2026-01-02T03:04:05Z"}`+"\n",
			i, largeAddress(1, i, 0), (i+2)%20, largeAddress(1, (i+2)%20, 0))
	}
	files["flows.jsonl"] = flows.String()
	for n := range namespaces {
		files[fmt.Sprintf("cluster/ns-%d.yaml", n)] = largeNamespace(n)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			b.Fatal(err)
		}
	}
}

func largeAddress(namespace, workload, replica int) string {
	return fmt.Sprintf("10.%d.%d.%d", namespace/128, namespace%128*2+replica%2, 1+workload*5+replica)
}

func largePolicy(namespace, workload, rules string) string {
	return fmt.Sprintf(`---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: %s
  namespace: %s
spec:
  podSelector:
    matchLabels:
      app: %[1]s%[3]s
`, workload, namespace, rules)
}

// largeNamespace returns a namespace with its nodes.
func largeNamespace(n int) string {
	var text strings.Builder
	namespace := fmt.Sprintf("ns-%d", n)
	fmt.Fprintf(&text, "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: %s\n  labels:\n    team: team-%d\n", namespace, n%10)
	for i := range 2 {
		subnet := n%128*2 + i
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Node\nmetadata:\n  name: node-%d\nspec:\n  podCIDR: 10.%d.%d.0/24\nstatus:\n  addresses:\n  - type: InternalIP\n    address: 172.16.%[2]d.%[3]d\n", 2*n+i, n/128, subnet)
	}
	fmt.Fprintf(&text, `---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: default-deny
  namespace: %s
spec:
  podSelector: {}
  policyTypes: [Ingress, Egress]
  egress:
  - to:
    - namespaceSelector:
        matchLabels:
          team: team-0
      podSelector:
        matchLabels:
          app: app-0
    ports:
    - protocol: UDP
      port: 53
`, namespace)
	for w := range 20 {
		app := fmt.Sprintf("app-%d", w)
		if w > 0 {
			text.WriteString(largePolicy(namespace, app, fmt.Sprintf(`
  ingress:
  - from:
    - podSelector:
        matchLabels:
          app: app-%d
    ports:
    - port: http
  - from:
    - namespaceSelector:
        matchLabels:
          team: team-%d
    - ipBlock:
        cidr: 192.168.%d.%d/32
    ports:
    - port: 9090`, w-1, w%10, n%256, n/256*20+w)))
		}
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Service
metadata:
  name: %s
  namespace: %s
spec:
  selector:
    app: %[1]s
  ports:
  - port: 80
    targetPort: http
`, app, namespace)
		for r := range 5 {
			fmt.Fprintf(&text, `---
apiVersion: v1
kind: Pod
metadata:
  name: %s-%d
  namespace: %s
  labels:
    app: %[1]s
    pod-template-hash: hash-%[4]d
  ownerReferences:
  - apiVersion: apps/v1
    kind: ReplicaSet
    name: %[1]s-hash-%[4]d
    uid: uid-%[4]d
    controller: true
spec:
  nodeName: node-%[5]d
  containers:
  - name: app
    image: registry.example/app
    ports:
    - name: http
      containerPort: 8080
status:
  phase: Running
  podIPs:
  - ip: %[6]s
`, app, r, namespace, 20*n+w, 2*n+r%2, largeAddress(n, w, r))
		}
	}
	return text.String()
}
