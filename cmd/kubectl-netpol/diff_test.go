package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

const dbPolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: db}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 5432}]
`

// Applying one policy gives the same answer for a cluster in files and for a live one: it
// replaces the policy of its name and leaves the others.
func TestOnePolicyIsApplied(t *testing.T) {
	t.Chdir("testdata")
	live := " --context shop --kubeconfig " + kubeconfig(t, server(t, everywhere, "shop").URL)
	for _, flags := range []string{"", " -n shop", " --port 5432", " -o json", " -o markdown", " --replace", " --replace -n shop"} {
		t.Run("diff"+flags, func(t *testing.T) {
			codeFiles, files, stderr := call(t, dbPolicy, "diff -f shop -f -"+flags)
			codeLive, ofLive, _ := call(t, dbPolicy, "diff -f -"+flags+live)
			if codeFiles != 1 || codeLive != 1 || files != ofLive {
				t.Errorf("got %d\n%s%sand of the live cluster %d\n%s", codeFiles, files, stderr, codeLive, ofLive)
			}
		})
	}

	_, applied, _ := call(t, dbPolicy, "diff --port 5432 -f shop -f -")
	if want := "TCP 5432:\n  no longer allowed: shop/api -> shop/db\n    by shop/db\n  newly allowed: shop/web -> shop/db\n    by shop/db\n\n"; !strings.HasPrefix(applied, want) {
		t.Errorf("got\n%swant\n%s", applied, want)
	}
}

// --replace deletes policies that the file does not have: all of them, or those of -n.
func TestPoliciesAreReplaced(t *testing.T) {
	t.Chdir("testdata")
	for flags, replaced := range map[string]bool{"": false, " --replace": true, " --replace -n shop": true, " --replace -n monitoring": false} {
		t.Run(flags, func(t *testing.T) {
			code, stdout, stderr := call(t, dbPolicy, "diff --port http -f shop -f -"+flags)
			if got := strings.Contains(stdout, "  newly allowed: shop/api -> shop/web\n"); got != replaced || (code == 1) != replaced {
				t.Errorf("%s: replaced is %t, want %t: %d\n%s%s", flags, got, replaced, code, stdout, stderr)
			}
		})
	}
}

// Every pod has its own policy, so the default deny changes nothing for existing pods. It
// changes connections of a pod that is created later.
func TestPodsThatWillCome(t *testing.T) {
	t.Chdir("testdata")
	const workload = `apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: %, labels: {app: %}, ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: %, uid: a, controller: true}]}
spec: {nodeName: n1}
status: {phase: Running, podIP: 10.0.1.%}
---
`
	const policy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: %}
spec: {podSelector: {matchLabels: {app: %}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}
---
`
	const deny = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: default-deny}
spec: {podSelector: {}}
---
`
	pods := strings.ReplaceAll(strings.ReplaceAll(workload, "10.0.1.%", "10.0.1.1"), "%", "web") +
		strings.ReplaceAll(strings.ReplaceAll(workload, "10.0.1.%", "10.0.1.2"), "%", "db")
	policies := strings.ReplaceAll(policy, "%", "web") + strings.ReplaceAll(policy, "%", "db")
	dir := t.TempDir()
	write := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	withDeny := write("with.yaml", pods+policies+deny)
	t.Run("without labels", func(t *testing.T) {
		code, stdout, stderr := call(t, "", "diff --replace --port 80 -f "+withDeny+" -f "+write("without.yaml", policies))
		const want = "TCP 80:\n" +
			"  newly allowed: shop/sts/db, shop/sts/web, outside -> shop/new pod\n    by shop/default-deny\n" +
			"  newly allowed: shop/new pod -> another pod like it\n    by shop/default-deny\n" +
			"\nCompared: TCP 80, between 2 pods and a new pod without labels, and with addresses outside.\n"
		if code != 1 || stdout != want {
			t.Errorf("got %d\n%s%swant\n%s", code, stdout, stderr, want)
		}
	})
	t.Run("of a workload", func(t *testing.T) {
		policyForDB := strings.ReplaceAll(strings.ReplaceAll(policy, "{app: web}}}]}]", "{app: db}}}]}]"), "%", "web")
		code, stdout, _ := call(t, policyForDB, "diff --port 80 -f "+withDeny+" -f -")
		if code != 1 || !strings.Contains(stdout, "  no longer allowed: shop/sts/web -> another pod like it\n") {
			t.Errorf("got %d\n%s", code, stdout)
		}
	})
}

func TestDifferenceAsMarkdown(t *testing.T) {
	t.Chdir("testdata")
	_, got, _ := call(t, "", "diff --port 5432 -f shop -f proposed -o markdown")
	const want = `### Network policies: connections that change

| | from | to | traffic | by |
| --- | --- | --- | --- | --- |
| no longer allowed | shop/web | monitoring/new pod, monitoring/prometheus, 192.168.0.2, outside | TCP 5432 | shop/web-egress |
| newly allowed | shop/new pod | shop/db | TCP 5432 | shop/db |

- Compared: TCP 5432, between 5 pods and a new pod without labels in each of 2 namespaces, with 192.168.0.2 of nodes, and with addresses outside.
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if _, got, _ := call(t, "", "diff -f shop -f shop -o markdown"); !strings.Contains(got, "\n\nNothing changes.\n\n- Compared: ") {
		t.Errorf("got\n%s", got)
	}
}

const newWorkload = `apiVersion: apps/v1
kind: Deployment
metadata: {namespace: shop, name: cache}
spec:
  selector: {matchLabels: {app: cache}}
  template: {metadata: {labels: {app: cache}}, spec: {containers: [{name: c, image: i}]}}
---
`

// Connections of pods that only one of the clusters has are changes.
func TestPodsOfOneClusterAreCompared(t *testing.T) {
	t.Chdir("testdata")
	const opened = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: shop, name: cache}\n" +
		"spec: {podSelector: {matchLabels: {app: cache}}, ingress: [{}]}\n"
	without := strings.Replace(newWorkload, "shop", "empty", 1)
	for name, tc := range map[string]struct {
		input, flags, want string
		code               int
	}{
		"added and open":        {newWorkload + opened, "--address 203.0.113.1", "TCP 80:\n  newly allowed: monitoring/new pod, monitoring/node-exporter, monitoring/prometheus, 203.0.113.1 -> shop/deploy/cache\n", 1},
		"a workload alone":      {without, "--address 203.0.113.1", "TCP 80:\n  newly allowed: empty/deploy/cache -> ", 1},
		"of another namespace":  {newWorkload + opened, "-n empty", "--namespace=empty: there is no such namespace; there are monitoring, shop", 2},
		"ignored":               {newWorkload, "--ignore-new", "Nothing that was compared changes.\n", 0},
		"ignored, and named":    {newWorkload, "--ignore-new", "\nNot compared: shop/cache\n", 0},
		"ignored elsewhere":     {newWorkload, "--ignore-new -n monitoring", "Nothing changes.\n", 0},
		"removed":               {newWorkload, "--replace -n shop", ", with shop/api, shop/db, shop/web removed", 1},
		"removed, and ignored":  {newWorkload, "--replace --ignore-new", "no pods: there is nothing to compare", 2},
		"an address not known":  {newWorkload + hostNetwork, "--port 1 --address 203.0.113.1", "newly allowed: shop/api, shop/db, shop/new pod, shop/web -> shop/agent\n", 1},
		"nothing, not even one": {strings.Replace(newWorkload, "Deployment", "Secret", 1), "", "Nothing changes.", 0},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := call(t, tc.input, "diff --port 80 -f shop -f - "+tc.flags)
			if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
				t.Errorf("got %d\n%s%swant\n%s", code, stdout, stderr, tc.want)
			}
		})
	}
	code, markdown, _ := call(t, newWorkload, "diff -f shop -f - --ignore-new -o markdown")
	if code != 0 || !strings.Contains(markdown, "\nNothing that was compared changes.\n") || !strings.Contains(markdown, "- Not compared: shop/cache\n") {
		t.Errorf("got %d\n%s", code, markdown)
	}
	_, text, _ := call(t, newWorkload, "diff -f shop -f - -o json")
	var got struct {
		OnlyAfter []string
		Changes   []any
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || !slices.Equal(got.OnlyAfter, []string{"shop/deploy/cache"}) || len(got.Changes) == 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

const hostNetwork = `apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: agent}
spec: {hostNetwork: true, containers: [{name: c, image: i}]}
`

// Replicas with new names are those of their workload.
func TestReplicasAreNotNew(t *testing.T) {
	pods := func(names ...string) string {
		var out strings.Builder
		for i, name := range names {
			fmt.Fprintf(&out, `apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: web-%s, labels: {app: web}, ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: web, uid: a, controller: true}]}
spec: {nodeName: n1}
status: {phase: Running, podIP: 10.0.1.%d}
---
`, name, i+1)
		}
		return out.String()
	}
	file := filepath.Join(t.TempDir(), "before.yaml")
	if err := os.WriteFile(file, []byte(pods("a", "b")), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := call(t, pods("c", "a"), "diff --replace -f "+file+" -f -")
	if code != 0 || !strings.HasPrefix(stdout, "Nothing changes.\n") {
		t.Errorf("got %d\n%s%s", code, stdout, stderr)
	}
}

// The answer says which parts of a policy are not enforced as written.
func TestDifferenceSaysWhatIsNotEnforced(t *testing.T) {
	t.Chdir("testdata")
	const flags = "diff --feature-gates=EndPort=false -f shop -f proposed"
	const want = "NetworkPolicy shop/db: spec.ingress[0].ports[0].endPort: "
	code, _, stderr := call(t, "", flags)
	if code != 1 || !strings.HasPrefix(stderr, "Not enforced as written: "+want) {
		t.Errorf("got %d %s", code, stderr)
	}
	_, markdown, stderr := call(t, "", flags+" -o markdown")
	if !strings.Contains(markdown, "- Not enforced as written: "+want) || stderr != "" {
		t.Errorf("got\n%s%s", markdown, stderr)
	}

	_, stdout, _ := call(t, "", flags+" -o json")
	var got struct{ Findings []reachability.Finding }
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || len(got.Findings) != 1 || got.Findings[0].Name != "db" {
		t.Errorf("got %v, %v", got.Findings, err)
	}
	if _, _, stderr := call(t, "", flags+" -n monitoring"); stderr != "" {
		t.Errorf("of another namespace: %s", stderr)
	}
}

func TestManifestsAreApplied(t *testing.T) {
	pod := func(name, owner string, labels map[string]string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: labels}}
		if owner != "" {
			controller := true
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: owner, Controller: &controller}}
		}
		return p
	}
	const hash = appsv1.DefaultDeploymentUniqueLabelKey
	template := pod("web", "", map[string]string{"app": "web", "track": "new"})
	controller := true
	template.OwnerReferences = []metav1.OwnerReference{{Kind: "Deployment", Name: "web", Controller: &controller}}
	namespace := func(name string, labels map[string]string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	before := clusterstate.Input{
		Namespaces: []*corev1.Namespace{namespace("shop", map[string]string{"team": "shop", "env": "test"}), namespace("other", nil)},
		Pods: []*corev1.Pod{
			pod("web-1-a", "web-1", map[string]string{"app": "web", "old": "yes", hash: "1"}),
			pod("bare", "", map[string]string{"app": "bare"}),
		},
	}
	after := applied(before, clusterstate.Input{
		Namespaces: []*corev1.Namespace{namespace("shop", map[string]string{"env": "prod"}), namespace("new", nil)},
		Pods:       []*corev1.Pod{template, pod("bare", "", map[string]string{"app": "dressed"}), pod("more", "", nil)},
	}, nil)
	if len(after.Pods) != 3 || after.Pods[2].Name != "more" {
		t.Errorf("the pods are %v", after.Pods)
	}
	if got, want := after.Pods[0].Labels, map[string]string{"app": "web", "track": "new", hash: "1"}; !maps.Equal(got, want) {
		t.Errorf("the Deployment's pod has %v, want %v", got, want)
	}
	if got := after.Pods[1].Labels["app"]; got != "dressed" {
		t.Errorf("the bare pod is app=%s", got)
	}
	if got, want := after.Namespaces[0].Labels, map[string]string{"team": "shop", "env": "prod"}; len(after.Namespaces) != 3 || !maps.Equal(got, want) {
		t.Errorf("the namespace has %v, want %v", got, want)
	}
	if before.Namespaces[0].Labels["env"] != "test" || before.Pods[0].Labels["old"] != "yes" {
		t.Error("applied changed its input")
	}
}

// The matrix also says what is not enforced, in every machine-readable format.
func TestMatrixSaysWhatIsNotEnforced(t *testing.T) {
	t.Chdir("testdata")
	const flags = "matrix --feature-gates=EndPort=false -f shop/cluster.yaml -f proposed"
	const want = "Not enforced as written: NetworkPolicy shop/db: spec.ingress[0].ports[0].endPort: "
	for _, port := range []string{"", " --port 80"} {
		if code, _, stderr := call(t, "", flags+port); code != 0 || !strings.HasPrefix(stderr, want) {
			t.Errorf("got %d %s", code, stderr)
		}
		for _, output := range []string{"json"} {
			_, stdout, _ := call(t, "", flags+port+" -o "+output)
			var got struct{ Findings []reachability.Finding }
			if err := yaml.Unmarshal([]byte(stdout), &got); err != nil || len(got.Findings) != 1 || got.Findings[0].Name != "db" {
				t.Errorf("%s: got %v, %v in\n%s", output, got.Findings, err, stdout)
			}
		}
	}
}

// Replicas of a workload are one line of a difference, unless policies tell them apart.
func TestWorkloadsAreCompared(t *testing.T) {
	const isolated = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: ns-00, name: new}\nspec: {podSelector: {matchLabels: {LABELS}}, policyTypes: [Egress]}\n"
	tree(t, map[string]string{
		"cluster.json": replicated(24, 2),
		"all.yaml":     strings.Replace(isolated, "LABELS", "tier: gateway", 1),
		"one.yaml":     strings.Replace(isolated, "LABELS", "tier: gateway, canary: 'true'", 1),
	})
	for policy, want := range map[string]string{
		"all.yaml": "  no longer allowed: ns-00/deploy/gateway-0 -> ",
		"one.yaml": "  no longer allowed: ns-00/deploy/gateway-0 (gateway-0-7d4f-3) -> ",
	} {
		code, stdout, stderr := call(t, "", "diff --port 443 -f cluster.json -f "+policy)
		if code != exitNo || !strings.Contains(stdout, want) || strings.Contains(stdout, "gateway-0-7d4f-1,") {
			t.Errorf("%s: got %d\n%s%swant %s", policy, code, stdout, stderr, want)
		}
	}
}
