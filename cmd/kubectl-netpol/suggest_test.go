package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

func TestSuggestFromFiles(t *testing.T) {
	t.Chdir("testdata")
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	lines, err := os.ReadFile("flows.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	records := string(lines)
	denied := strings.ReplaceAll(records, `"verdict":"allow"`, `"verdict":"deny"`)
	for _, tc := range []struct {
		name, command, stdin string
		code                 int
		stdout, stderr       string // substrings
	}{
		{"a file", "suggest -n shop -f shop/cluster.yaml --records flows.jsonl", "", 0, "name: suggested-api\n", "Allowed when enforced: 2 flows, each one evaluated.\n"},
		{"standard input", "suggest -n shop -f shop/cluster.yaml --records -", records, 0, "name: suggested-api\n", ""},
		{"two files", "suggest -n shop -f shop/cluster.yaml --records flows.jsonl --records -", records, 0, "12 packets", "Allowed when enforced: 2 flows"},
		{"audited", "suggest -n shop -f shop/cluster.yaml --records flows.jsonl", "", 0, "enforcement: audit\n",
			"  kubectl annotate networkpolicy -n shop suggested-api suggested-web suggested-default-deny kube-network-policies.x-k8s.io/enforcement-\n"},
		{"enforced", "suggest -n shop -f shop/cluster.yaml --records flows.jsonl --enforce", "", 0, "    app.kubernetes.io/managed-by: kubectl-netpol\nspec:\n", ""},
		{"no flow of the pod", "suggest -n shop -f shop/cluster.yaml --records flows.jsonl", "", 0, "", "No flows of db are recorded: "},
		{"denied", "suggest -n shop -f shop --records -", denied, 2, "", "error: all recorded flows of namespace shop (2) were denied by enforced policies, and do not count without --with-denied\n"},
		{"denied, and asked for", "suggest -n shop -f shop/cluster.yaml --with-denied --records -", denied, 0, "name: suggested-web\n", ""},
		{"not possible", "suggest -n shop -f shop/cluster.yaml --records -", strings.Replace(records, `"protocol":"TCP","port":8000`, `"protocol":"ICMP"`, 1), 1,
			"name: suggested-api\n", "Not allowed: web -> api, ICMP: NetworkPolicy has rules for TCP, UDP and SCTP only\n"},
		{"blocks", "suggest -n shop -f shop/cluster.yaml --block a=203.0.113.0/24 --block b=203.0.113.0/28 --records -",
			strings.Replace(records, `{"namespace":"monitoring","pod":"prometheus","address":"10.0.1.2"}`, `{"address":"203.0.113.9"}`, 1), 0,
			"  # b 203.0.113.0/28 -> api, TCP 9090: 31 packets\n  - from:\n    - ipBlock:\n        cidr: 203.0.113.0/28\n", ""},
		{"everything is allowed", "suggest -n shop -f shop --records -", strings.Split(records, "\n")[1] + "\n", 0, "", ""},
		{"no records", "suggest -n shop -f shop --records -", "", 2, "", "error: there are no records"},
		{"without --records", "suggest -n shop -f shop", "", 2, "", "error: --filename: --records is needed, too: only the agents of a live cluster have flows\n"},
		{"twice the standard input", "suggest -n shop -f - --records -", "", 2, "", "error: --filename=- and --records=-: standard input can be read once\n"},
		{"no such file", "suggest -n shop -f shop --records none", "", 2, "", "error: --records=none: open none: no such file or directory\n"},
		{"a line that is no record", "suggest -n shop -f shop --records -", records + "I0102 a message\n", 2, "", "error: --records=-: line 4: invalid character 'I'"},
		{"a field of another type", "suggest -n shop -f shop --records -", strings.Replace(records, `"port":9090`, `"port":90900`, 1), 2, "",
			"error: --records=-: line 2: json: cannot unmarshal number 90900 into Go struct field Record.port of type uint16\n"},
		{"a field that is missing", "suggest -n shop -f shop --records -", strings.Replace(records, `"count":12,`, "", 1), 2, "", "error: --records=-: line 3: flow: no count\n"},
		{"an unknown namespace", "suggest -n shp -f shop --records flows.jsonl", "", 2, "", "error: --namespace=shp: there is no such namespace; near it: shop\n"},
		{"a namespace without flows", "suggest -n default -f shop --records flows.jsonl", "", 2, "", "error: --namespace=default: there is no such namespace; there are monitoring, shop\n"},
		{"all namespaces", "suggest -A -f shop --records flows.jsonl", "", 2, "", "error: --all-namespaces: "},
		{"a block without a name", "suggest -n shop -f shop --records flows.jsonl --block 10.0.0.0/8", "", 2, "", "error: --block=10.0.0.0/8: must be NAME=CIDR\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := call(t, tc.stdin, tc.command)
			if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("exit code %d, want %d\n%s\n%s\nwant %q and %q", code, tc.code, stdout, stderr, tc.stdout, tc.stderr)
			}
			if code == exitError && stdout != "" {
				t.Errorf("policies are printed in spite of an error:\n%s", stdout)
			}
		})
	}
}

// Flows that cannot be allowed are grouped by workload and reason.
func TestSuggestionsAreGroupedByWorkload(t *testing.T) {
	t.Chdir("testdata")
	gone := func(pod string, port string) string {
		return strings.NewReplacer(`"pod":"web-0"`, `"pod":"`+pod+`"`, `"pod":"db-0"`, `"pod":"db"`, "5432", port, `"direction":"ingress","tier":"networkpolicy","reason":"rule matched"`, `"direction":"ingress","tier":"default","reason":"not selected"`).Replace(flowLine) + "\n"
	}
	lines, err := os.ReadFile("flows.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	records := string(lines) + gone("cart-7d4f9c8b6d-bcdfg", "5432") + gone("cart-7d4f9c8b6d-xxxxx", "5432") + gone("cart-7d4f9c8b6d-xxxxx", "5433")
	const want = "Not allowed, as a pod is gone, and its name is not one that a workload of today gives to its pods:\n  cart-* -> db, TCP 5432 (2 flows of pods)\n  cart-* -> db, TCP 5433\n"

	code, _, stderr := call(t, records, "suggest -n shop -f shop/cluster.yaml --records -")

	if code != 1 || !strings.Contains(stderr, want) || strings.Contains(stderr, "no longer allowed") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

// TestSuggestionsCanBeApplied: the suggested manifests can be read, and with them applied
// nothing is left to suggest.
func TestSuggestionsCanBeApplied(t *testing.T) {
	t.Chdir("testdata")
	_, manifests, _ := call(t, "", "suggest -n shop -f shop --records flows.jsonl --enforce")
	const command = "suggest -n shop -f shop -f - --records flows.jsonl"
	code, stdout, stderr := call(t, manifests, command)
	if code != 0 || stdout != "" || !strings.Contains(stderr, "No policy is needed for that.\n") {
		t.Errorf("exit code %d\n%s\n%s\nafter\n%s", code, stdout, stderr, manifests)
	}
}

// suggestLive runs the command for the namespace shop of testdata/shop, with these agents.
func suggestLive(t *testing.T, agents fakeAgents) (stdout, stderr string, err error) {
	t.Helper()
	s := server(t, everywhere, "shop/cluster.yaml")
	api := s.Config.Handler.(*apiServer)
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "cart", "tier": "back"}}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "back"}}
	api.store(kindsOfWorkloads[0], &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"}, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template},
	})
	o := &options{notes: io.Discard, namespace: "shop", context: "shop", kubeconfig: kubeconfig(t, s.URL), features: compile.AllFeatures()}
	var out, errs bytes.Buffer
	cmd := newSuggest(o)
	o.adminPolicies = true
	cmd.SetContext(t.Context())
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	c := suggestOptions{agentOptions: agentOptions{options: o, connect: agents.connect}}
	err = c.run(cmd)
	return out.String(), errs.String(), err
}

// TestSuggestAsksTheAgents: agents that do not answer are named. Workloads of the live
// cluster are recognised by their selectors even if they have no pods any more.
func TestSuggestAsksTheAgents(t *testing.T) {
	t.Chdir("testdata")
	line := strings.NewReplacer(`"pod":"web-0"`, `"pod":"cart-7d4f9c8b6d-bcdfg"`, `"pod":"db-0"`, `"pod":"db"`).Replace(flowLine)
	answers := func(node string) func(context.Context, []string, io.Writer, io.Writer) error {
		return func(ctx context.Context, command []string, out, errs io.Writer) error {
			if got := strings.Join(command, " "); got != "kube-network-policies flows --namespace=shop" {
				t.Errorf("ran %q", got)
			}
			return prints(node, agentLine, line)(ctx, command, out, errs)
		}
	}
	const rule = "  # deploy/cart -> db, TCP 5432: 12 packets\n  - from:\n    - podSelector:\n        matchLabels:\n          tier: back\n    ports:\n    - port: sql\n"
	stdout, stderr, err := suggestLive(t, fakeAgents{"n1": answers("n1"), "n2": answers("n2")})
	if err != nil || !strings.Contains(stdout, rule) {
		t.Errorf("error %v\n%s\n%s", err, stdout, stderr)
	}
	stdout, stderr, err = suggestLive(t, fakeAgents{"n1": nil, "n2": answers("n2")})
	if !errors.Is(err, errNo) || !strings.Contains(stdout, rule) || !strings.Contains(stderr, "No answer of node n1: ") {
		t.Errorf("an agent is missing: error %v\n%s\n%s", err, stdout, stderr)
	}
	stdout, _, err = suggestLive(t, fakeAgents{"n1": nil})
	if err == nil || err.Error() != "no agent has answered" || stdout != "" {
		t.Errorf("all are missing: error %v\n%s", err, stdout)
	}

	stdout, _, err = suggestLive(t, fakeAgents{"n1": prints("n1", agentLine)})
	if err == nil || !strings.Contains(err.Error(), "This one is not enforced, and has them recorded:\n\n") || stdout != "" {
		t.Errorf("without flows: error %v\n%s", err, stdout)
	}
}
