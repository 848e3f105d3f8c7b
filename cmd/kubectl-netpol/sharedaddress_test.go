package main

import (
	"strings"
	"testing"
)

// An explanation says which addresses of its pods others claim, too: pods of other nodes and Nodes.
func TestExplanationNamesSharedAddresses(t *testing.T) {
	pod := func(name, node, addr string) string {
		return strings.NewReplacer("NAME", name, "NODE", node, "ADDR", addr).Replace(
			`{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: NAME}, spec: {nodeName: NODE, containers: [{name: c, image: i}]}, status: {phase: Running, podIPs: [{ip: "ADDR"}]}}
---
`)
	}
	const node = `{apiVersion: v1, kind: Node, metadata: {name: n3}, status: {addresses: [{type: InternalIP, address: 203.0.113.9}]}}
---
`
	const namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n---\n"
	for name, tc := range map[string]struct {
		objects string
		want    string // the claimant, empty for no note
	}{
		"its own":                  {pod("web", "n1", "203.0.113.1") + pod("db", "n2", "203.0.113.2"), ""},
		"of a pod elsewhere":       {pod("web", "n1", "203.0.113.1") + pod("db", "n2", "203.0.113.2") + pod("old", "n3", "203.0.113.2"), "the address 203.0.113.2 of pod shop/db is in the status of pod shop/old, too"},
		"of a pod elsewhere, IPv6": {pod("web", "n1", "2001:db8::1") + pod("db", "n2", "2001:db8::2") + pod("zoo", "n3", "2001:db8::1"), "the address 2001:db8::1 of pod shop/web is in the status of pod shop/zoo, too"},
		"of a pod of its node":     {pod("web", "n1", "203.0.113.1") + pod("db", "n2", "203.0.113.2") + pod("old", "n2", "203.0.113.2"), ""},
		"of a node":                {pod("web", "n1", "203.0.113.9") + pod("db", "n2", "203.0.113.2") + node, "the address 203.0.113.9 of pod shop/web is in the status of node n3, too"},
		"of its node":              {pod("web", "n3", "203.0.113.9") + pod("db", "n2", "203.0.113.2") + node, ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := call(t, namespace+tc.objects, "explain -f - shop/web shop/db --port 80")
			const note = "are decided as for each of them"
			if code != 0 || strings.Contains(stdout, note) != (tc.want != "") || !strings.Contains(stdout, tc.want) {
				t.Errorf("exit code %d, want 0 and %q\n%s%s", code, tc.want, stdout, stderr)
			}
		})
	}
}

// A pod whose address a pod of another node has, too, is decided by its node as itself, and by other nodes
// as each of the two, also where the other one is newer, older or on its way out.
func TestPodsWithOneAddress(t *testing.T) {
	const namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n---\n"
	pod := func(name, node, addr, more string) string {
		return strings.NewReplacer("NAME", name, "NODE", node, "ADDR", addr, "MORE", more).Replace(
			`{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: NAME, labels: {app: NAME}MORE}, spec: {nodeName: NODE, containers: [{name: c, image: i}]}, status: {phase: Running, podIPs: [{ip: "ADDR"}]}}
---
`)
	}
	policy := func(subject, peer string) string {
		return strings.NewReplacer("SUBJECT", subject, "PEER", peer).Replace(
			`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: shop, name: SUBJECT}, spec: {podSelector: {matchLabels: {app: SUBJECT}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: PEER}}}]}]}}
---
`)
	}
	const isolated = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: shop, name: one-out}, spec: {podSelector: {matchLabels: {app: one}}, policyTypes: [Egress]}}
---
`
	for _, addr := range []string{"203.0.113.1", "2001:db8::1"} {
		other := strings.NewReplacer("113.1", "113.2", "8::1", "8::2").Replace(addr)
		for _, more := range []string{"", `, creationTimestamp: "2020-01-01T00:00:00Z"`, `, deletionTimestamp: "2020-01-01T00:00:00Z"`} {
			objects := namespace + pod("one", "n1", addr, "") + pod("two", "n2", addr, more) + pod("db", "n3", other, "")
			for _, tc := range []struct {
				name, policies, from, to string
				code                     int
				want                     string
			}{
				{"no policy", "", "shop/two", "shop/db", 0, ""},
				{"for itself only", policy("db", "two"), "shop/two", "shop/db", 1, "as for pod shop/one, which may have " + addr},
				{"for the other only", policy("db", "two"), "shop/one", "shop/db", 1, "as for pod shop/one, which may have " + addr},
				{"the other one's egress", isolated, "shop/two", "shop/db", 0, ""},
				{"its own egress", isolated, "shop/one", "shop/db", 1, "NetworkPolicies isolate the pod"},
				{"to it", policy("one", "web"), "shop/db", "shop/two", 0, ""},
				{"to the other one", policy("one", "web"), "shop/db", "shop/one", 1, "shop/db has app=db"},
				{"the address", policy("db", "two"), addr, "shop/db", 1, "as for pod shop/one"},
			} {
				t.Run(tc.name+" "+addr+more, func(t *testing.T) {
					code, stdout, stderr := call(t, objects+tc.policies, "explain -f - "+tc.from+" "+tc.to+" --port 80")
					if code != tc.code || !strings.Contains(stdout, tc.want) || !strings.Contains(stdout, "is in the status of pod shop/") {
						t.Errorf("exit code %d, want %d and %q\n%s%s", code, tc.code, tc.want, stdout, stderr)
					}
				})
			}
		}
	}
}
