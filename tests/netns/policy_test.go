package netns

import (
	"fmt"
	"net/netip"
	"testing"
)

// policy returns a NetworkPolicy; body is indented text of its spec.
func policy(namespace, name, spec string) string {
	return fmt.Sprintf("---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: %q, name: %q}\nspec: %s\n", namespace, name, spec)
}

// TestPolicies holds what NetworkPolicy means against real packets, over both
// families, with both ends on one node and on two. The cluster and its agents
// are the same for all of it: each part removes its policies again.
func TestPolicies(t *testing.T) {
	c := newCluster(t, 2,
		"x/web@1 app=web", "x/db@1 app=db", "x/far@2 app=far",
		"y/web@1 app=web", "y/db@2 app=db", "z/web@2 app=web")
	client, err := c.AddHost(t.Context(), c.Nodes[0], "client", netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8::9"))
	if err != nil {
		t.Fatal(err)
	}
	c.addHost(t, client)
	c.start(t)

	for _, part := range []struct {
		name         string
		policies     string
		expectations []expectation
	}{
		{
			"without a policy all is open", "",
			[]expectation{
				yes("x/db", "x/web", "tcp/80"), yes("x/far", "x/web", "tcp/80"), yes("client", "x/web", "udp/80"),
				yes("x/web", "client", "tcp/80"), yes("node-2", "x/web", "tcp/80"), yes("y/db", "x/web", "icmp"),
			},
		}, {
			"default deny of ingress",
			policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress]}`),
			[]expectation{
				no("x/db", "x/web", "tcp/80"), no("x/db", "x/web", "udp/80"), no("y/web", "x/web", "tcp/80"),
				no("y/db", "x/web", "tcp/80"), no("client", "x/web", "tcp/80"), no("x/web", "x/far", "udp/80"), no("y/web", "x/web", "icmp"),
				// Replies pass, whichever end is isolated.
				yes("x/web", "y/web", "tcp/80"), yes("x/web", "y/db", "udp/80"), yes("x/web", "client", "tcp/80"), yes("x/far", "y/web", "icmp"),
			},
		}, {
			"default deny of egress",
			policy("x", "deny", `{podSelector: {}, policyTypes: [Egress]}`),
			[]expectation{
				no("x/web", "x/db", "tcp/80"), no("x/web", "y/db", "udp/80"), no("x/far", "client", "tcp/80"), no("x/web", "y/web", "icmp"),
				no("x/web", "node-2", "tcp/80"),
				yes("y/web", "x/web", "tcp/80"), yes("y/db", "x/web", "udp/80"), yes("client", "x/far", "tcp/80"),
			},
		}, {
			"allow by label and namespace",
			policy("x", "allow", `
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from:
    - namespaceSelector: {matchLabels: {ns: "y"}}
      podSelector: {matchLabels: {app: db}}
    - podSelector: {matchLabels: {app: far}}`),
			[]expectation{
				yes("y/db", "x/web", "tcp/80"), yes("y/db", "x/web", "udp/81"), yes("x/far", "x/web", "tcp/80"), yes("y/db", "x/web", "icmp"),
				no("y/web", "x/web", "tcp/80"), no("x/db", "x/web", "tcp/80"), no("z/web", "x/web", "udp/80"), no("client", "x/web", "tcp/80"),
				yes("y/web", "x/db", "tcp/80"),
			},
		}, {
			"egress by label needs ingress at the other end too",
			policy("x", "out", `
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Egress]
  egress: [{to: [{namespaceSelector: {matchLabels: {ns: "y"}}}]}]`) +
				policy("y", "in", `
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{namespaceSelector: {matchLabels: {ns: x}}, podSelector: {matchLabels: {app: far}}}]}]`),
			[]expectation{
				yes("x/web", "y/web", "tcp/80"), no("x/web", "y/db", "tcp/80"), no("x/web", "z/web", "tcp/80"),
				yes("x/far", "y/db", "udp/80"), no("x/db", "y/db", "udp/80"),
			},
		}, {
			"a port, of its protocol only",
			policy("x", "port", `
  podSelector: {matchLabels: {app: web}}
  ingress: [{ports: [{port: 80}, {port: 81, protocol: UDP}]}]`),
			[]expectation{
				yes("y/db", "x/web", "tcp/80"), no("y/db", "x/web", "udp/80"), yes("y/web", "x/web", "udp/81"), no("y/web", "x/web", "tcp/81"),
				yes("client", "x/web", "tcp/80"), no("client", "x/web", "tcp/8080"),
				no("y/db", "x/web", "icmp"),
			},
		}, {
			"a range of ports, its ends included",
			policy("x", "range", `
  podSelector: {matchLabels: {app: web}}
  ingress: [{ports: [{port: 80, endPort: 81}, {port: 8000, endPort: 9000, protocol: UDP}]}]`),
			[]expectation{
				yes("y/db", "x/web", "tcp/80"), yes("y/web", "x/web", "tcp/81"), no("y/db", "x/web", "tcp/8080"),
				yes("y/db", "x/web", "udp/8080"), no("y/db", "x/web", "udp/81"),
			},
		}, {
			"a named port is the destination pod's, for its protocol",
			policy("x", "named", `
  podSelector: {matchLabels: {app: web}}
  ingress: [{ports: [{port: web}]}]`) +
				policy("z", "named", `
  podSelector: {}
  policyTypes: [Egress]
  egress: [{to: [{namespaceSelector: {}}], ports: [{port: web, protocol: UDP}]}]`),
			[]expectation{
				yes("y/db", "x/web", "tcp/80"), no("y/db", "x/web", "udp/81"), no("y/web", "x/web", "tcp/81"),
				yes("z/web", "y/db", "udp/81"), no("z/web", "y/db", "tcp/80"), no("z/web", "client", "udp/81"),
			},
		}, {
			"ipBlock and except",
			policy("x", "blocks", `
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from:
    - ipBlock: {cidr: 203.0.113.0/24}
    - ipBlock: {cidr: "2001:db8::/32"}
    - ipBlock: {cidr: 10.244.2.0/24}
    - ipBlock: {cidr: "fd00:10:244:2::/64"}`) +
				policy("y", "except", `
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Egress]
  egress:
  - to:
    - ipBlock: {cidr: 0.0.0.0/0, except: [203.0.113.0/28]}
    - ipBlock: {cidr: "::/0", except: ["2001:db8::/64"]}`),
			[]expectation{
				yes("client", "x/web", "tcp/80"), yes("z/web", "x/web", "udp/80"), no("x/db", "x/web", "tcp/80"), no("y/web", "x/web", "tcp/80"),
				yes("y/web", "x/db", "tcp/80"), no("y/web", "client", "tcp/80"),
			},
		}, {
			"a rule without ports lets ICMP pass",
			policy("x", "pods", `
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{namespaceSelector: {}}]}]`),
			[]expectation{
				yes("y/db", "x/web", "icmp"), yes("x/db", "x/web", "icmp"), no("client", "x/web", "icmp"),
				yes("y/db", "x/web", "udp/8080"), no("client", "x/web", "udp/80"),
			},
		}, {
			"the own node always passes, another node is an ordinary source",
			policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`),
			[]expectation{
				yes("node-1", "x/web", "tcp/80"), yes("node-1", "x/db", "udp/80"), yes("node-2", "x/far", "icmp"),
				yes("x/web", "node-1", "tcp/80"), yes("x/far", "node-2", "udp/80"), yes("x/web", "node-1", "icmp"),
				no("node-2", "x/web", "tcp/80"), no("node-1", "x/far", "udp/80"), no("x/web", "node-2", "tcp/80"),
			},
		}, {
			"no selector matches a node, an ipBlock does",
			policy("x", "node", `
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{ipBlock: {cidr: 172.18.0.2/32}}, {ipBlock: {cidr: "fd00:172:18::2/128"}}]}]`) +
				policy("x", "all-pods", `
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{namespaceSelector: {}}, {podSelector: {}}]}]`),
			[]expectation{
				yes("node-2", "x/web", "tcp/80"), no("node-2", "x/db", "tcp/80"), no("x/far", "x/web", "tcp/80"), yes("x/far", "x/db", "udp/80"),
			},
		}, {
			"a pod reaches itself",
			policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`),
			[]expectation{yes("x/web", "x/web", "tcp/80"), yes("x/far", "x/far", "udp/80"), no("x/web", "x/db", "tcp/80")},
		},
	} {
		t.Run(part.name, func(t *testing.T) {
			if part.policies != "" {
				c.apply(t, "policies", part.policies)
			}
			c.expect(t, part.expectations...)
		})
	}
}
