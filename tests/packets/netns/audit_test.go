package netns

import (
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// audited annotates a policy as audited.
func audited(policy string) string {
	return strings.Replace(policy, "metadata: {", `metadata: {annotations: {kube-network-policies.x-k8s.io/enforcement: audit}, `, 1)
}

const auditPackets, wouldBeDenied = "netpol_audit_packets_total", "Packet would be denied by audited policies"

// auditedDenials returns how many packets the policy x/web would have denied.
func auditedDenials(m lab.Metrics) float64 {
	return m.Sum(auditPackets, "kind", "NetworkPolicy", "namespace", "x", "policy", "web", "direction", "ingress", "verdict", "deny")
}

// awaitAudit opens connections, which all pass, until packets are counted.
func (c *cluster) awaitAudit(t *testing.T, agent *lab.Agent, passes labtest.Expectation, counted func(lab.Metrics) float64) {
	t.Helper()
	if err := labtest.Within(t, func() bool {
		c.Expect(t, passes)
		return counted(labtest.Metrics(t, agent)) > 0
	}); err != nil {
		t.Errorf("denials by the audited policy are not counted; those of all audited policies are %v", labtest.Metrics(t, agent).Sum(auditPackets))
	}
}

// TestAudit: a policy that denies everything is audited, then enforced, then audited again.
// While it is audited, packets pass and are counted and logged.
func TestAudit(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "z/web@1 app=web")
	agent := c.Start(t, "--log-denied")[0]
	c.Apply(t, "policies", audited(letsNone))
	allowed := labtest.Yes("y/db", "x/web", "tcp/80")
	c.awaitAudit(t, agent, allowed, auditedDenials)
	c.Expect(t, labtest.Yes("y/db", "x/web", "udp/80"), labtest.Yes("y/db", "z/web", "tcp/80"))
	labtest.WaitLog(t, agent, wouldBeDenied)
	labtest.WaitLog(t, agent, `srcPod="y/db"`)
	if m := labtest.Metrics(t, agent); labtest.Denied(m) > 0 || labtest.Steered(m) > 0 || m.Sum("netpol_steered_packets_total", "purpose", "audit") == 0 {
		t.Errorf("%v packets denied, %v steered as if policies were enforced", labtest.Denied(m), labtest.Steered(m))
	}

	c.Replace(t, "policies", letsNone)
	c.Expect(t, labtest.No("y/db", "x/web", "tcp/80"), labtest.No("y/db", "x/web", "udp/80"), labtest.Yes("y/db", "z/web", "tcp/80"))

	c.Replace(t, "policies", audited(letsNone))
	c.Expect(t, allowed)
}

// TestAuditedPodsNeedNoAgent kills the agent. Traffic of pods that only audited policies
// select is not affected, whatever happens to the rest.
func TestAuditedPodsNeedNoAgent(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "z/web@1 app=web")
	agent := c.Start(t)[0]
	c.Apply(t, "policies", audited(letsNone)+labtest.Policy("z", "closed", `{podSelector: {}, policyTypes: [Ingress]}`))
	passes := labtest.Yes("y/db", "x/web", "tcp/80")
	c.Expect(t, passes, labtest.No("y/db", "z/web", "tcp/80"))
	c.awaitAudit(t, agent, passes, auditedDenials)
	agent.Kill()
	c.Expect(t, passes, labtest.Yes("y/db", "x/web", "udp/80"), labtest.No("y/db", "z/web", "tcp/80"))
}

// TestAuditedPodsNeedNoAgentThatAnswers stops the agent and fills the audit queue. Packets
// that do not fit pass at once, including first packets of connections. Queued packets pass
// when the agent continues or another one starts.
func TestAuditedPodsNeedNoAgentThatAnswers(t *testing.T) {
	const room, sent = 256, 3000
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "z/web@1 app=web")
	labtest.NeedConntrack(t, sent)
	agent := c.Start(t)[0]
	if _, err := c.Hosts["x/web"].Sink(9999); err != nil {
		t.Fatal(err)
	}
	c.Apply(t, "policies", audited(letsNone)+labtest.Policy("z", "closed", `{podSelector: {}, policyTypes: [Ingress]}`))
	passes := labtest.Yes("y/db", "x/web", "tcp/80")
	c.Expect(t, passes, labtest.No("y/db", "z/web", "tcp/80"))
	c.awaitAudit(t, agent, passes, auditedDenials)
	counter := labtest.NewCounter(t, c.Nodes[0], "udp dport 9999")

	if err := agent.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c.flood(t, "y/db", "x/web", 9999, sent)
	arrived := counter.Arrived(t) // a slow machine may lose some before
	passed := func() int { return counter.Left(t) }
	if err := labtest.Within(t, func() bool { return passed() >= arrived-room }); err != nil {
		t.Errorf("%d of %d datagrams passed a full queue of %d", passed(), arrived, room)
	}
	waited := passed()
	if waited == arrived {
		t.Error("no datagram waits: the queue was never full")
	}
	c.Expect(t, passes, labtest.Yes("y/db", "x/web", "udp/80"), labtest.No("y/db", "z/web", "tcp/80"))
	if err := agent.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := labtest.Within(t, func() bool { return passed() > waited }); err != nil {
		t.Errorf("no queued datagram passed when the agent continued")
	}
	c.Expect(t, passes, labtest.No("y/db", "z/web", "tcp/80"))
}

// TestAuditOfTheWholeAgent: with --audit nothing is enforced, even if policies deny
// everything.
func TestAuditOfTheWholeAgent(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db")
	c.Apply(t, "policies", letsNone+labtest.Admin("deny", `ingress: [{action: Deny, from: [{namespaces: {}}]}]`))
	agent := c.Start(t, "--audit", labtest.WithAdmin)[0]
	c.awaitAudit(t, agent, labtest.Yes("y/db", "x/web", "tcp/80"), func(m lab.Metrics) float64 {
		return m.Sum(auditPackets, "kind", "AdminNetworkPolicy", "policy", "deny")
	})
}
