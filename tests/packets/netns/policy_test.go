package netns

import (
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// TestPolicies tests the meaning of NetworkPolicy with real packets over both families,
// with both ends on one node and on two. All parts share the cluster and its agents, and
// each part removes its policies again.
func TestPolicies(t *testing.T) { testPolicies(t) }

// TestPoliciesWithAnswers is TestPolicies with agents that answer denied packets.
func TestPoliciesWithAnswers(t *testing.T) { testPolicies(t, "--deny=reject") }

func testPolicies(t *testing.T, options ...string) {
	t.Helper()
	c := newCluster(t, 2,
		"x/web@1 app=web", "x/db@1 app=db", "x/far@2 app=far",
		"y/web@1 app=web", "y/db@2 app=db", "z/web@2 app=web")
	client, err := c.AddHost(t.Context(), c.Nodes[0], "client", netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8::9"))
	if err != nil {
		t.Fatal(err)
	}
	c.Serve(t, client)
	c.Rejects = len(options) > 0
	c.Start(t, options...)

	for _, part := range []struct {
		name         string
		policies     string
		expectations []labtest.Expectation
	}{
		{
			"without a policy all is open", "",
			[]labtest.Expectation{
				labtest.Yes("x/db", "x/web", "tcp/80"), labtest.Yes("x/far", "x/web", "tcp/80"), labtest.Yes("client", "x/web", "udp/80"),
				labtest.Yes("x/web", "client", "tcp/80"), labtest.Yes("node-2", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "icmp"),
			},
		}, {
			"default deny of ingress",
			labtest.Policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress]}`),
			[]labtest.Expectation{
				labtest.No("x/db", "x/web", "tcp/80"), labtest.No("x/db", "x/web", "udp/80"), labtest.No("y/web", "x/web", "tcp/80"),
				labtest.No("y/db", "x/web", "tcp/80"), labtest.No("client", "x/web", "tcp/80"), labtest.No("x/web", "x/far", "udp/80"), labtest.No("y/web", "x/web", "icmp"),
				// Replies pass, whichever end is isolated.
				labtest.Yes("x/web", "y/web", "tcp/80"), labtest.Yes("x/web", "y/db", "udp/80"), labtest.Yes("x/web", "client", "tcp/80"), labtest.Yes("x/far", "y/web", "icmp"),
			},
		}, {
			"default deny of egress",
			labtest.Policy("x", "deny", `{podSelector: {}, policyTypes: [Egress]}`),
			[]labtest.Expectation{
				labtest.No("x/web", "x/db", "tcp/80"), labtest.No("x/web", "y/db", "udp/80"), labtest.No("x/far", "client", "tcp/80"), labtest.No("x/web", "y/web", "icmp"),
				labtest.No("x/web", "node-2", "tcp/80"),
				labtest.Yes("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "udp/80"), labtest.Yes("client", "x/far", "tcp/80"),
			},
		}, {
			"allow by label and namespace",
			labtest.Policy("x", "allow", `
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from:
    - namespaceSelector: {matchLabels: {ns: "y"}}
      podSelector: {matchLabels: {app: db}}
    - podSelector: {matchLabels: {app: far}}`),
			[]labtest.Expectation{
				labtest.Yes("y/db", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "udp/81"), labtest.Yes("x/far", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "icmp"),
				labtest.No("y/web", "x/web", "tcp/80"), labtest.No("x/db", "x/web", "tcp/80"), labtest.No("z/web", "x/web", "udp/80"), labtest.No("client", "x/web", "tcp/80"),
				labtest.Yes("y/web", "x/db", "tcp/80"),
			},
		}, {
			"egress by label needs ingress at the other end too",
			labtest.Policy("x", "out", `
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Egress]
  egress: [{to: [{namespaceSelector: {matchLabels: {ns: "y"}}}]}]`) +
				labtest.Policy("y", "in", `
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{namespaceSelector: {matchLabels: {ns: x}}, podSelector: {matchLabels: {app: far}}}]}]`),
			[]labtest.Expectation{
				labtest.Yes("x/web", "y/web", "tcp/80"), labtest.No("x/web", "y/db", "tcp/80"), labtest.No("x/web", "z/web", "tcp/80"),
				labtest.Yes("x/far", "y/db", "udp/80"), labtest.No("x/db", "y/db", "udp/80"),
			},
		}, {
			"a port, of its protocol only",
			labtest.Policy("x", "port", `
  podSelector: {matchLabels: {app: web}}
  ingress: [{ports: [{port: 80}, {port: 81, protocol: UDP}]}]`),
			[]labtest.Expectation{
				labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("y/db", "x/web", "udp/80"), labtest.Yes("y/web", "x/web", "udp/81"), labtest.No("y/web", "x/web", "tcp/81"),
				labtest.Yes("client", "x/web", "tcp/80"), labtest.No("client", "x/web", "tcp/8080"),
				labtest.No("y/db", "x/web", "icmp"),
			},
		}, {
			"a range of ports, its ends included",
			labtest.Policy("x", "range", `
  podSelector: {matchLabels: {app: web}}
  ingress: [{ports: [{port: 80, endPort: 81}, {port: 8000, endPort: 9000, protocol: UDP}]}]`),
			[]labtest.Expectation{
				labtest.Yes("y/db", "x/web", "tcp/80"), labtest.Yes("y/web", "x/web", "tcp/81"), labtest.No("y/db", "x/web", "tcp/8080"),
				labtest.Yes("y/db", "x/web", "udp/8080"), labtest.No("y/db", "x/web", "udp/81"),
			},
		}, {
			"a named port is the destination pod's, for its protocol",
			labtest.Policy("x", "named", `
  podSelector: {matchLabels: {app: web}}
  ingress: [{ports: [{port: web}]}]`) +
				labtest.Policy("z", "named", `
  podSelector: {}
  policyTypes: [Egress]
  egress: [{to: [{namespaceSelector: {}}], ports: [{port: web, protocol: UDP}]}]`),
			[]labtest.Expectation{
				labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("y/db", "x/web", "udp/81"), labtest.No("y/web", "x/web", "tcp/81"),
				labtest.Yes("z/web", "y/db", "udp/81"), labtest.No("z/web", "y/db", "tcp/80"), labtest.No("z/web", "client", "udp/81"),
			},
		}, {
			"ipBlock and except",
			labtest.Policy("x", "blocks", `
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from:
    - ipBlock: {cidr: 203.0.113.0/24}
    - ipBlock: {cidr: "2001:db8::/32"}
    - ipBlock: {cidr: 10.244.2.0/24}
    - ipBlock: {cidr: "fd00:10:244:2::/64"}`) +
				labtest.Policy("y", "except", `
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Egress]
  egress:
  - to:
    - ipBlock: {cidr: 0.0.0.0/0, except: [203.0.113.0/28]}
    - ipBlock: {cidr: "::/0", except: ["2001:db8::/64"]}`),
			[]labtest.Expectation{
				labtest.Yes("client", "x/web", "tcp/80"), labtest.Yes("z/web", "x/web", "udp/80"), labtest.No("x/db", "x/web", "tcp/80"), labtest.No("y/web", "x/web", "tcp/80"),
				labtest.Yes("y/web", "x/db", "tcp/80"), labtest.No("y/web", "client", "tcp/80"),
			},
		}, {
			"a rule without ports lets ICMP pass",
			labtest.Policy("x", "pods", `
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{namespaceSelector: {}}]}]`),
			[]labtest.Expectation{
				labtest.Yes("y/db", "x/web", "icmp"), labtest.Yes("x/db", "x/web", "icmp"), labtest.No("client", "x/web", "icmp"),
				labtest.Yes("y/db", "x/web", "udp/8080"), labtest.No("client", "x/web", "udp/80"),
			},
		}, {
			"the own node always passes, another node is an ordinary source",
			labtest.Policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`),
			[]labtest.Expectation{
				labtest.Yes("node-1", "x/web", "tcp/80"), labtest.Yes("node-1", "x/db", "udp/80"), labtest.Yes("node-2", "x/far", "icmp"),
				labtest.Yes("x/web", "node-1", "tcp/80"), labtest.Yes("x/far", "node-2", "udp/80"), labtest.Yes("x/web", "node-1", "icmp"),
				labtest.No("node-2", "x/web", "tcp/80"), labtest.No("node-1", "x/far", "udp/80"), labtest.No("x/web", "node-2", "tcp/80"),
			},
		}, {
			"no selector matches a node, an ipBlock does",
			labtest.Policy("x", "node", `
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{ipBlock: {cidr: 172.18.0.2/32}}, {ipBlock: {cidr: "fd00:172:18::2/128"}}]}]`) +
				labtest.Policy("x", "all-pods", `
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{namespaceSelector: {}}, {podSelector: {}}]}]`),
			[]labtest.Expectation{
				labtest.Yes("node-2", "x/web", "tcp/80"), labtest.No("node-2", "x/db", "tcp/80"), labtest.No("x/far", "x/web", "tcp/80"), labtest.Yes("x/far", "x/db", "udp/80"),
			},
		}, {
			"a pod reaches itself",
			labtest.Policy("x", "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`),
			[]labtest.Expectation{labtest.Yes("x/web", "x/web", "tcp/80"), labtest.Yes("x/far", "x/far", "udp/80"), labtest.No("x/web", "x/db", "tcp/80")},
		},
	} {
		t.Run(part.name, func(t *testing.T) {
			if part.policies != "" {
				c.Apply(t, "policies", part.policies)
			}
			c.Expect(t, part.expectations...)
		})
	}
}
