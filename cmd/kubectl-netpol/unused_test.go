package main

import (
	"fmt"
	"strings"
	"testing"
)

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

// A policy whose rules others have does nothing, of files and of a live cluster, also beside one that
// allows everything, but not if that one is audited.
func TestRedundantPolicies(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {namespace: shop, name: web, labels: {app: web}}\nstatus: {phase: Running, podIPs: [{ip: 10.0.0.1}]}\n"
	const narrow = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: shop, name: narrow}\nspec: {podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 80}]}]}\n"
	wide := func(annotations, rule string) string {
		return "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: shop, name: wide" + annotations + "}\nspec: {podSelector: {}, ingress: [" + rule + "]}\n"
	}
	const does = "NetworkPolicy  shop/narrow  1     enforced  all, shop/wide allows the same to the same pods\n"
	for name, tc := range map[string]struct {
		policy string
		want   bool
	}{
		"the same port":     {wide("", "{ports: [{port: 80}]}"), true},
		"a range":           {wide("", "{ports: [{port: 1, endPort: 100}]}"), true},
		"everything":        {wide("", "{}"), true},
		"another port":      {wide("", "{ports: [{port: 81}]}"), false},
		"only some clients": {wide("", "{from: [{podSelector: {}}]}"), false},
		"audited":           {wide(", annotations: {kube-network-policies.x-k8s.io/enforcement: audit}", "{}"), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, stdout, stderr := call(t, pod+narrow+tc.policy, "list -f -")
			if strings.Contains(stdout, does) != tc.want {
				t.Errorf("want narrow to do nothing: %v\n%s%s", tc.want, stdout, stderr)
			}
		})
	}
}

// The rules of enforced policies that no agent counted are unused, except those that never decide.
func TestUnusedRules(t *testing.T) {
	const monthAgo, dayAgo = "2025-12-02T12:00:00Z", "2026-01-01T09:00:00Z"
	lost := strings.Replace(startedAt(monthAgo), `"lost":0`, `"lost":1`, 1)
	audits := strings.Replace(startedAt(monthAgo), `"flows"`, `"auditOnly":true,"flows"`, 1)
	ingress := decided("NetworkPolicy", "shop", "web", "ingress", "0", "2026-01-02T11:59:00Z")
	isolated := decided("NetworkPolicy", "shop", "web", "ingress", "none", "2026-01-02T11:59:00Z")
	other := decided("other", "", "other", "ingress", "none", "2026-01-02T11:59:00Z")
	admin := decided("AdminNetworkPolicy", "", "guard", "ingress", "0", "2026-01-02T11:59:00Z")
	for name, tc := range map[string]struct {
		agents fakeAgents
		unused string // of guard and web
		notes  string
	}{
		"by none":        {fakeAgents{"a": prints("a", startedAt(monthAgo), isolated), "b": prints("b", startedAt(dayAgo))}, "ingress 0, ingress 0", "Unused since the agents were started: that of node b 27h ago.\n"},
		"by one":         {fakeAgents{"a": prints("a", startedAt(monthAgo), ingress), "b": prints("b", startedAt(dayAgo))}, "ingress 0, ", "node b 27h ago.\n"},
		"of another":     {fakeAgents{"a": prints("a", startedAt(monthAgo), admin)}, ", ingress 0", "node a 31d ago.\n"},
		"lost":           {fakeAgents{"a": prints("a", lost, ingress, admin)}, ", ", "Node a: 1 decision counts for no rule, because they came too fast.\n"},
		"too many rules": {fakeAgents{"a": prints("a", startedAt(monthAgo), ingress, admin, other)}, ", ", "Node a: 3 decisions count for no rule, because too many rules decided.\n"},
		"audited":        {fakeAgents{"a": prints("a", audits, ingress, admin)}, ", ", "Node a: its agent runs with --audit, so that no rule decides.\n"},
		"no start":       {fakeAgents{"a": prints("a", agentLine, ingress, admin)}, ", ", "node a 0s ago.\n"},
		"one is silent":  {fakeAgents{"a": prints("a", startedAt(monthAgo)), "b": nil}, ", ", "b"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, _ := listOf(t, "text", tc.agents)
			guard, web, _ := strings.Cut(tc.unused, ", ")
			for _, want := range []string{"AdminNetworkPolicy  guard       2     enforced         " + guard, "NetworkPolicy       shop/web    1     partly enforced  " + web} {
				if i := strings.Index(stdout, want); i < 0 || strings.HasPrefix(strings.TrimLeft(stdout[i+len(want):], " "), "ingress") {
					t.Errorf("want %q\n%s", want, stdout)
				}
			}
			if !strings.Contains(stderr, tc.notes) {
				t.Errorf("standard error %q, want %q", stderr, tc.notes)
			}
		})
	}
}
