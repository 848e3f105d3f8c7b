package netns

import (
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// misspelt is a default deny that no agent can read: the field is podSelector.
const misspelt = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: x}
spec:
  podSelectors: {}
`

// notReady waits until the agent says why it is not ready.
func notReady(t *testing.T, agent *lab.Agent, why string) {
	t.Helper()
	var status int
	var body string
	if err := labtest.Within(t, func() (there bool) {
		status, body, _ = agent.Get(t.Context(), "/readyz")
		return status != 0 && strings.Contains(body, why)
	}); err != nil || status == 200 {
		t.Fatalf("readyz answers %d, %s; want %q", status, body, why)
	}
	labtest.WaitLog(t, agent, "no policy is enforced, and new connections of pods wait")
	if strings.Contains(agent.Log(), "stays in force") {
		t.Errorf("the log says that something stays in force, though nothing is known")
	}
}

// TestAMisspeltManifestClosesAStart: an agent that cannot read one of its files enforces nothing of the
// others. New connections of all pods wait, whether an earlier agent isolated them or the node has no rules.
func TestAMisspeltManifestClosesAStart(t *testing.T) {
	c := newCluster(t, 2, "x/web@1", "y/web@1", "z/far@2")
	node := c.Nodes[0]
	start := func() *lab.Agent { return c.startAgent(t, lab.AgentConfig{Manifests: c.Manifests.Dir()}) }
	// z/far is a pod of another node.
	closed := []labtest.Expectation{
		labtest.No("y/web", "x/web", "tcp/80"), labtest.No("x/web", "y/web", "udp/80"), labtest.No("z/far", "y/web", "tcp/80"), labtest.No("y/web", "z/far", "tcp/80"),
		labtest.Yes(node.Name, "x/web", "tcp/80"), labtest.Yes("x/web", node.Name, "tcp/80"), labtest.Yes("node-2", node.Name, "tcp/80"),
	}
	denied := []labtest.Expectation{labtest.No("y/web", "x/web", "tcp/80"), labtest.No("x/web", "y/web", "udp/80"), labtest.Yes("z/far", "y/web", "tcp/80")}
	const right, file = "podSelector: {}\n  policyTypes: [Ingress, Egress]", "deny.yaml:6: unknown field \"spec.podSelectors\""

	c.Replace(t, "deny", strings.Replace(misspelt, "podSelectors: {}", right, 1))
	agent := start()
	labtest.WaitReady(t, agent)
	c.Expect(t, denied...)
	c.Replace(t, "deny", misspelt) // while it runs, what was valid last stays
	labtest.WaitLog(t, agent, "its last valid content stays in force")
	c.Expect(t, denied...)
	if status, body, err := agent.Get(t.Context(), "/readyz"); err != nil || status != 200 {
		t.Errorf("readyz answers %d, %s, %v", status, body, err)
	}

	for _, before := range []struct{ name, command string }{
		{"an agent", "list ruleset"},
		{"no rules", "flush ruleset"},
		{"an agent that closed the node", "list ruleset"},
	} {
		if err := agent.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := node.Run(t.Context(), "", "nft", strings.Fields(before.command)...); err != nil {
			t.Fatal(err)
		}
		agent = start()
		notReady(t, agent, file)
		c.waitSteered(t, "y/web")
		c.Expect(t, closed...)
		if got := labtest.Metrics(t, agent).Sum("netpol_boot_closed"); got != 1 {
			t.Errorf("after %s: netpol_boot_closed is %v", before.name, got)
		}
	}

	c.Replace(t, "deny", strings.Replace(misspelt, "podSelectors: {}", right, 1))
	labtest.WaitReady(t, agent)
	c.Expect(t, denied...)
}
