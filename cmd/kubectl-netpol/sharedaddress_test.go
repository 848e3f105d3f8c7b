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
			const note = "is in the status of"
			if code != 0 || strings.Contains(stdout, note) != (tc.want != "") || !strings.Contains(stdout, tc.want) {
				t.Errorf("exit code %d, want 0 and %q\n%s%s", code, tc.want, stdout, stderr)
			}
		})
	}
}
