package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// listedPolicies are pods and policies of each state.
const listedPolicies = `apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: web, labels: {app: web}}
spec: {nodeName: n1}
status: {phase: Running, podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: db, labels: {app: db}}
spec: {nodeName: n1}
status: {phase: Running, podIPs: [{ip: 10.0.0.2}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: db}
spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress, Egress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: none}
spec: {podSelector: {matchLabels: {app: none}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: tried, annotations: {kube-network-policies.x-k8s.io/enforcement: audit}}
spec: {podSelector: {}, policyTypes: [Ingress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: web}
spec: {podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 80, endPort: 90}]}]}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: guard}
spec: {priority: 5, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}
`

// listOf runs the command list on an API server with listedPolicies and these agents.
func listOf(t *testing.T, output string, agents fakeAgents) (stdout, stderr string, err error) {
	t.Helper()
	objects, err := clusterfiles.Read([]string{clusterfiles.Stdin}, strings.NewReader(listedPolicies), clusterfiles.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := server(t, everywhere)
	api := s.Config.Handler.(*apiServer)
	api.store(compile.KindPod, asObjects(objects.Pods)...)
	for _, k := range compile.Kinds {
		api.store(k, slices.DeleteFunc(slices.Clone(objects.Policies), func(o compile.Object) bool { return !k.Has(o) })...)
	}
	o := &options{notes: io.Discard, context: "shop", kubeconfig: kubeconfig(t, s.URL)}
	var out, errs bytes.Buffer
	cmd := newList(o)
	o.adminPolicies, o.features = true, compile.AllFeatures()
	o.features.EndPort = false
	cmd.SetContext(t.Context())
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	l := listOptions{agentOptions: agentOptions{options: o, connect: agents.connect}, output: output}
	err = l.run(cmd)
	return out.String(), errs.String(), err
}

func TestListOfPolicies(t *testing.T) {
	denied := strings.NewReplacer(`"verdict":"allow"`, `"verdict":"deny"`)
	isolated := denied.Replace(decided("NetworkPolicy", "shop", "db", "ingress", "none", "2026-01-02T11:59:00Z"))
	earlier := denied.Replace(decided("NetworkPolicy", "shop", "db", "egress", "none", "2026-01-02T10:00:00Z"))
	allowed := decided("NetworkPolicy", "shop", "web", "ingress", "0", "2026-01-02T11:59:00Z")
	would := strings.NewReplacer(`"count"`, `"audit":{"verdict":"deny","direction":"ingress","tier":"networkpolicy","reason":"isolated","policy":{"kind":"NetworkPolicy","namespace":"shop","name":"tried"}},"count"`,
		"03:04:00Z", "11:00:00Z").Replace(flowLine)
	answering := func(node string) func(context.Context, []string, io.Writer, io.Writer) error {
		return func(ctx context.Context, command []string, out, errs io.Writer) error {
			if slices.Contains(command, "--audit") {
				return prints(node, startedAt("2026-01-02T03:00:00Z"), would)(ctx, command, out, errs)
			}
			return prints(node, startedAt("2026-01-02T03:00:00Z"), isolated, earlier, allowed)(ctx, command, out, errs)
		}
	}
	const without = `
KIND                NAME        PODS  STATE            UNUSED
AdminNetworkPolicy  guard       2     enforced
NetworkPolicy       shop/db     1     enforced
NetworkPolicy       shop/none   0     enforced         all, selects no pod
NetworkPolicy       shop/tried  2     audited
NetworkPolicy       shop/web    1     partly enforced
`
	const with = `
KIND                NAME        PODS  STATE            UNUSED               DENIED  LAST
AdminNetworkPolicy  guard       2     enforced         ingress 0            0
NetworkPolicy       shop/db     1     enforced                              12      60s ago
NetworkPolicy       shop/none   0     enforced         all, selects no pod  0
NetworkPolicy       shop/tried  2     audited                               24      60m ago
NetworkPolicy       shop/web    1     partly enforced                       0
`

	stdout, stderr, err := listOf(t, "text", fakeAgents{"a": answering("a"), "b": answering("b")})

	if diff := cmp.Diff(with[1:], stdout); diff != "" || stderr != "Unused since the agents were started: that of node a 9h ago.\n" || err != nil {
		t.Errorf("error %v, standard error %q\n%s", err, stderr, diff)
	}
	stdout, stderr, err = listOf(t, "text", fakeAgents{"a": nil})
	if diff := cmp.Diff(without[1:], stdout); diff != "" || !strings.Contains(stderr, "Not known: what policies denied: no agent has answered\n") || !errors.Is(err, errNo) {
		t.Errorf("no agent answers: error %v, standard error %q\n%s", err, stderr, diff)
	}
	code, stdout, stderr := call(t, listedPolicies, "list -f - --feature-gates=EndPort=false")
	if diff := cmp.Diff(without[1:], stdout); diff != "" || code != 0 {
		t.Errorf("of files: exit code %d, standard error %q\n%s", code, stderr, diff)
	}
	code, stdout, _ = call(t, listedPolicies, "list -n shop -o json -f -")
	if code != 0 || !strings.Contains(stdout, `"name": "tried",`) || !strings.Contains(stdout, `"doesNothing": "selects no pod"`) || strings.Contains(stdout, "guard") || strings.Contains(stdout, "denied") {
		t.Errorf("as JSON: exit code %d\n%s", code, stdout)
	}
}
