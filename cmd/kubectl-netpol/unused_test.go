package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

const ruledPolicies = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {}
  policyTypes: [Ingress, Egress]
  ingress:
  - ports: [{port: 5432}]
  - ports: [{port: 9187}]
  egress:
  - to: [{podSelector: {}}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: tried
  namespace: shop
  annotations: {kube-network-policies.x-k8s.io/enforcement: audit}
spec: {podSelector: {}, ingress: [{ports: [{port: 1}]}]}
---
apiVersion: v1
kind: Namespace
metadata:
  name: trial
  annotations: {kube-network-policies.x-k8s.io/enforcement: audit}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: trial}
spec: {podSelector: {}, ingress: [{ports: [{port: 1}]}]}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: guard}
spec:
  priority: 5
  subject: {namespaces: {}}
  ingress:
  - {action: Pass, from: [{namespaces: {}}]}
  - {action: Deny, from: [{namespaces: {}}]}
`

// startedAt returns the line of an agent that started at a time on 2 January. It is asked at
// noon.
func startedAt(clock string) string {
	return `{"type":"agent","node":"NODE","time":"2026-01-02T12:00:00Z","started":"` + clock + `","cursor":"1-2","flows":2,"maxFlows":4096,"evicted":0,"lost":0,"withheld":0}`
}

// decided returns the line of a rule, "none" for no rule.
func decided(kind, namespace, name, direction, rule, last string) string {
	if rule != "none" {
		rule = `"rule":` + rule + `,`
	} else {
		rule = ""
	}
	return fmt.Sprintf(`{"type":"rule","node":"NODE","verdict":"allow","direction":%q,"policy":{"kind":%q,"namespace":%q,"name":%q},%s"count":3,"last":%q}`,
		direction, kind, namespace, name, rule, last)
}

func TestUnused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(file, []byte(ruledPolicies), 0o600); err != nil {
		t.Fatal(err)
	}
	const dayAgo, monthAgo = "2026-01-01T09:00:00Z", "2025-12-02T12:00:00Z"
	ingress := decided("NetworkPolicy", "shop", "db", "ingress", "0", "2025-12-30T12:00:00Z")
	later := decided("NetworkPolicy", "shop", "db", "ingress", "0", "2026-01-02T11:59:00Z")
	isolated := decided("NetworkPolicy", "shop", "db", "egress", "none", "2026-01-02T11:59:00Z")
	admin := decided("AdminNetworkPolicy", "", "guard", "ingress", "1", "2026-01-02T11:59:00Z")
	other := decided("other", "", "other", "ingress", "none", "2026-01-02T11:59:00Z")
	for _, tc := range []struct {
		name   string
		agents fakeAgents
		u      unusedOptions
		want   string
		notes  []string
		err    error
	}{
		{"never, by no agent", fakeAgents{"a": prints("a", startedAt(monthAgo), ingress), "b": prints("b", startedAt(dayAgo), isolated)}, unusedOptions{output: "text"}, `
POLICY                    DIRECTION  RULE  LAST DECIDED
AdminNetworkPolicy guard  ingress    1     never
NetworkPolicy shop/db     ingress    1     never
NetworkPolicy shop/db     egress     0     never
`, []string{"Agents that answered: 2; the one of node b was started last, 27h ago.\n"}, nil},
		{"some days ago", fakeAgents{"a": prints("a", startedAt(monthAgo), ingress, admin)}, unusedOptions{output: "text", days: 3}, `
POLICY                 DIRECTION  RULE  LAST DECIDED
NetworkPolicy shop/db  ingress    0     3d ago
NetworkPolicy shop/db  ingress    1     never
NetworkPolicy shop/db  egress     0     never
`, nil, nil},
		{"on another node later", fakeAgents{"a": prints("a", startedAt(monthAgo), ingress, admin), "b": prints("b", startedAt(monthAgo), later)}, unusedOptions{output: "text", days: 3}, `
POLICY                 DIRECTION  RULE  LAST DECIDED
NetworkPolicy shop/db  ingress    1     never
NetworkPolicy shop/db  egress     0     never
`, nil, nil},
		{"of a namespace", fakeAgents{"a": prints("a", startedAt(monthAgo), ingress)}, unusedOptions{output: "text", agentOptions: agentOptions{options: &options{namespace: "trial"}}}, `
No unused rules
`, nil, nil},
		{"an agent that has counted for less", fakeAgents{"a": prints("a", startedAt(monthAgo), ingress), "b": prints("b", startedAt(dayAgo), admin)}, unusedOptions{output: "text", days: 30}, `
POLICY                 DIRECTION  RULE  LAST DECIDED
NetworkPolicy shop/db  ingress    1     never
NetworkPolicy shop/db  egress     0     never
`, []string{"Node b: its agent has counted for 27h only.\n"}, errNo},
		{"an agent that does not answer", fakeAgents{"a": prints("a", startedAt(monthAgo), ingress, admin), "b": nil}, unusedOptions{output: "text"}, `
POLICY                 DIRECTION  RULE  LAST DECIDED
NetworkPolicy shop/db  ingress    1     never
NetworkPolicy shop/db  egress     0     never
`, []string{"No answer of node b: kube-system/agent-b: the pod is Pending\n"}, errNo},
		{"an agent that audits", fakeAgents{"a": prints("a", strings.Replace(startedAt(monthAgo), `"flows"`, `"auditOnly":true,"flows"`, 1), ingress, admin)}, unusedOptions{output: "text"}, `
POLICY                 DIRECTION  RULE  LAST DECIDED
NetworkPolicy shop/db  ingress    1     never
NetworkPolicy shop/db  egress     0     never
`, []string{"Node a: its agent runs with --audit, so that no rule decides.\n"}, errNo},
		{"an agent that does not say when it was started", fakeAgents{"a": prints("a", agentLine, ingress, admin)}, unusedOptions{output: "text", days: 30}, `
POLICY                 DIRECTION  RULE  LAST DECIDED
NetworkPolicy shop/db  ingress    1     never
NetworkPolicy shop/db  egress     0     never
`, []string{"Node a: its agent has counted for 0s only.\n"}, errNo},
		{"decisions that count for no rule", fakeAgents{"a": prints("a", strings.Replace(startedAt(monthAgo), `"lost":0`, `"lost":1`, 1), ingress, admin, other)}, unusedOptions{output: "text"}, `
POLICY                 DIRECTION  RULE  LAST DECIDED
NetworkPolicy shop/db  ingress    1     never
NetworkPolicy shop/db  egress     0     never
`, []string{"Node a: 1 decision counts for no rule, because they came too fast.\n", "Node a: 3 decisions count for no rule of their own, because too many rules decided.\n"}, nil},
		{"json", fakeAgents{"a": prints("a", startedAt(monthAgo), ingress, admin)}, unusedOptions{output: "json", days: 3}, `
{
  "unused": [
    {
      "kind": "NetworkPolicy",
      "namespace": "shop",
      "name": "db",
      "direction": "ingress",
      "rule": 0,
      "last": "2025-12-30T12:00:00Z"
    },
    {
      "kind": "NetworkPolicy",
      "namespace": "shop",
      "name": "db",
      "direction": "ingress",
      "rule": 1
    },
    {
      "kind": "NetworkPolicy",
      "namespace": "shop",
      "name": "db",
      "direction": "egress",
      "rule": 0
    }
  ],
  "notes": [
    "Agents that answered: 1; the one of node a was started last, 31d ago"
  ]
}
`, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			stdout, stderr, err := unusedOf(t, file, tc.agents, tc.u)
			if diff := cmp.Diff(tc.want[1:], stdout); diff != "" || !errors.Is(err, tc.err) {
				t.Errorf("error %v, standard error %q, standard output (-want +got):\n%s", err, stderr, diff)
			}
			for _, note := range tc.notes {
				if !strings.Contains(stderr, note) {
					t.Errorf("standard error %q, want %q", stderr, note)
				}
			}
		})
	}
}

func TestUnusedFlags(t *testing.T) {
	for want, u := range map[string]unusedOptions{
		"--days=-1: must not be negative":          {output: "text", days: -1},
		"--output=yaml: must be one of text, json": {output: "yaml"},
	} {
		t.Run(want, func(t *testing.T) {
			if _, _, err := unusedOf(t, "", fakeAgents{}, u); err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}

// unusedOf runs the command with these agents and the policies in a file.
func unusedOf(t *testing.T, file string, agents fakeAgents, u unusedOptions) (stdout, stderr string, err error) {
	t.Helper()
	o := &options{}
	o.addFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	if u.options != nil {
		o.namespace = u.namespace
	}
	o.files = []string{file}
	var out, errs bytes.Buffer
	o.notes = &errs
	u.options, u.connect = o, agents.connect
	cmd := newUnused(o)
	cmd.SetContext(t.Context())
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = u.run(cmd)
	return out.String(), errs.String(), err
}
