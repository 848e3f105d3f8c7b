package attacks

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// foreignChanges are changes by another process that let denied packets pass. $WEB is the
// IPv4 address of the isolated pod, $LAST the handle of the last rule in postrouting.
var foreignChanges = []string{
	"flush ruleset",
	"delete table inet netpol-agent",
	"flush chain inet netpol-agent postrouting",
	"delete element inet netpol-agent ingress-v4 { $WEB }",
	"flush set inet netpol-agent ingress-v4",
	"delete rule inet netpol-agent postrouting handle $LAST",
	"replace rule inet netpol-agent postrouting handle $LAST accept",
	"add table inet netpol-agent { flags dormant; }",
	"flush chain inet netpol-agent postrouting; delete chain inet netpol-agent postrouting",
}

// TestForeignChanges changes the table while denied packets keep arriving. The agent finds
// each change by the kernel's notification rather than at the next interval, and repairs
// it.
func TestForeignChanges(t *testing.T) {
	c, agent := isolatedWeb(t)
	node := c.Nodes[0].Host
	arrived := sendDenied(t, c)
	for _, change := range foreignChanges {
		script := strings.NewReplacer("$WEB", c.Hosts["x/web"].Addr(lab.IPv4).String(), "$LAST", lastHandle(t, node)).Replace(change)
		before, delivered := foreignFound(labtest.Metrics(t, agent)), arrived.Received()
		began := time.Now()
		if out, err := node.Run(t.Context(), script, "nft", "-f", "-"); err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
		if err := labtest.Within(t, func() bool { return foreignFound(labtest.Metrics(t, agent)) > before && ready(t, agent) }); err != nil {
			t.Fatalf("%s: not found by a notification, or not repaired", change)
		}
		took := time.Since(began)
		c.Expect(t, labtest.No("y/web", "x/web", "udp/80"), labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
		t.Logf("%s: repaired within %v, %d denied packets of 1 a millisecond delivered", change, took, arrived.Received()-delivered)
	}
	labtest.WaitLog(t, agent, "Another process changed the table")
	labtest.WaitLog(t, agent, `process="nft"`)

	// No other repair happens.
	if repairs := labtest.Metrics(t, agent).Sum("netpol_steer_repairs_total"); repairs != float64(len(foreignChanges)) {
		t.Errorf("%v repairs are counted, want %d", repairs, len(foreignChanges))
	}
}

// TestForeignChangesInALoop: while another process changes the table without pause, the
// agent is not ready. It becomes ready afterwards.
func TestForeignChangesInALoop(t *testing.T) {
	c, agent := isolatedWeb(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			// nft fails if the element has not been restored yet.
			_, _ = c.Nodes[0].Run(ctx, "", "nft", "delete", "element", "inet", "netpol-agent", "ingress-v4", "{", c.Hosts["x/web"].Addr(lab.IPv4).String(), "}")
		}
	}()
	err := labtest.Within(t, func() bool {
		status, body, err := agent.Get(t.Context(), "/readyz")
		return err == nil && status == http.StatusServiceUnavailable && strings.Contains(body, "another process (nft, pid")
	})
	stop()
	<-ended
	if err != nil {
		t.Error("ready while another process changes the table")
	}
	labtest.WaitReady(t, agent)
	c.Expect(t, labtest.No("y/web", "x/web", "udp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
}

// isolatedWeb starts a node with an agent and the pod x/web, which y/db may reach and y/web
// may not.
func isolatedWeb(t *testing.T) (*labtest.Cluster, *lab.Agent) {
	t.Helper()
	c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "y/web@1 app=web")
	agent := c.Start(t)[0]
	c.Apply(t, "policies", labtest.Policy("x", "only-db", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}]}]}`))
	c.Expect(t, labtest.No("y/web", "x/web", "udp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
	return c, agent
}

// sendDenied sends a denied packet each millisecond until the test ends.
func sendDenied(t *testing.T, c *labtest.Cluster) *lab.Sink {
	t.Helper()
	const port = 9999
	arrived, err := c.Hosts["x/web"].Sink(port)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.Hosts["y/web"].Dial(t.Context(), lab.UDP, netip.AddrPortFrom(c.Hosts["x/web"].Addr(lab.IPv4), port))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if _, err := conn.Write([]byte("denied")); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return arrived
}

func foreignFound(m lab.Metrics) float64 {
	return m.Sum("netpol_steer_external_changes_total", "found", "notification")
}

func ready(t *testing.T, agent *lab.Agent) bool {
	t.Helper()
	status, _, err := agent.Get(t.Context(), "/readyz")
	return err == nil && status == http.StatusOK
}

// lastHandle returns the handle of the last rule in postrouting.
func lastHandle(t *testing.T, node *lab.Host) string {
	t.Helper()
	out, err := node.Run(t.Context(), "", "nft", "-a", "list", "chain", "inet", "netpol-agent", "postrouting")
	if err != nil {
		t.Fatal(err)
	}
	last := out[strings.LastIndex(out, "# handle ")+len("# handle "):]
	handle, _, _ := strings.Cut(last, "\n")
	return strings.TrimSpace(handle)
}
