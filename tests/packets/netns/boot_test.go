package netns

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// newBooted returns a cluster and the CNI cache of its first node, which has the results of
// its pods. The other node is only a peer.
func newBooted(t *testing.T) (*cluster, cniCache) {
	t.Helper()
	c := newCluster(t, 2, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db", "y/far@2")
	cache := cniCache(t.TempDir())
	for name, pod := range c.Pods {
		pod.Object.UID = types.UID(strings.ReplaceAll(name, "/", "-"))
		if pod.Object.Spec.NodeName == c.Nodes[0].Name {
			cache.announce(t, pod)
		}
	}
	return c, cache
}

// steered reports whether the table has an address in its set of isolated pods.
func (c *cluster) steered(t *testing.T, addr netip.Addr) bool {
	t.Helper()
	_, err := c.Nodes[0].Run(t.Context(), "", "nft", "get", "element", "inet", steer.TableName, "ingress-v4", "{ "+addr.String()+" }")
	return err == nil
}

// waitSteered waits until the first packets to a pod are steered.
func (c *cluster) waitSteered(t *testing.T, pod string) {
	t.Helper()
	if err := labtest.Within(t, func() bool { return c.steered(t, c.Hosts[pod].Addr(lab.IPv4)) }); err != nil {
		t.Fatalf("first packets to %s are not steered: %v", pod, err)
	}
}

// openByHand runs the command of docs/operations.md that opens a node.
func (c *cluster) openByHand(t *testing.T) {
	t.Helper()
	if _, err := c.Nodes[0].Run(t.Context(), "", "nft", fmt.Sprintf("add table inet %s; delete table inet %[1]s; add table inet %[1]s", steer.TableName)); err != nil {
		t.Fatal(err)
	}
}

// TestABootIsClosed: on a node without a table, new connections of pods wait for the first
// snapshot, which a slow API server delays. No other traffic waits.
func TestABootIsClosed(t *testing.T) {
	c, cache := newBooted(t)
	node := c.Nodes[0]
	// Otherwise the kernel treats the first packet that it tracks as the first of a
	// connection.
	if _, err := node.Run(t.Context(), tracks, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	talk := converse(t, c.Hosts["y/web"], c.Hosts["x/web"])
	api := c.api(t)
	agent := c.startWithAPI(t, "--pod-address-source="+string(cache))
	c.waitSteered(t, "x/web")

	closed := func() float64 { return labtest.Metrics(t, agent).Sum("netpol_boot_closed") }
	if closed() != 1 {
		t.Error("no metric says that pods wait")
	}
	if status, _, err := agent.Get(t.Context(), "/readyz"); err != nil || status == 200 {
		t.Errorf("ready without a snapshot: %d, %v", status, err)
	}
	sink, err := c.Hosts["x/web"].Sink(9999)
	if err != nil {
		t.Fatal(err)
	}
	denied := c.sendWithoutEnd(t, c.Hosts["y/web"], netip.AddrPortFrom(c.Hosts["x/web"].Addr(lab.IPv4), 9999))
	c.Expect(t,
		labtest.No("y/web", "x/web", "tcp/80"), labtest.No("y/db", "x/web", "tcp/80"), labtest.No("x/web", "y/web", "udp/80"),
		labtest.No("y/db", "y/far", "tcp/80"), labtest.No("y/far", "y/db", "tcp/80"),
		labtest.Yes(node.Name, "x/web", "tcp/80"), labtest.Yes("x/web", node.Name, "tcp/80"), labtest.Yes(node.Name, "y/far", "tcp/80"), labtest.Yes("node-2", node.Name, "tcp/80"))

	late := labtest.NewPod("y/late@1 app=db")
	late.UID = "late"
	pod := c.Attach(t, late)[0]
	cache.announce(t, pod)
	c.waitSteered(t, "y/late")
	c.Expect(t, labtest.No("y/late", "x/web", "tcp/80"))
	answered := talk.answered.Load()
	if err := labtest.Within(t, func() bool { return talk.answered.Load() > answered }); err != nil || talk.failure.Load() != nil {
		t.Error("an established connection is cut")
	}

	put(t, api, pod.Object)
	serveAPI(t, node, api)
	labtest.WaitReady(t, agent)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"), labtest.Yes("y/late", "x/web", "tcp/80"),
		labtest.Yes("x/web", "y/web", "udp/80"), labtest.Yes("y/db", "y/far", "tcp/80"), labtest.Yes("y/far", "y/db", "tcp/80"))
	if closed() != 0 {
		t.Error("the metric says that pods wait")
	}
	if sink.Received() > 0 || denied.Load() == 0 {
		t.Errorf("%d of %d denied packets passed", sink.Received(), denied.Load())
	}
}

// TestARestartClosesNothing: a running node's table stays as it is, even if no API server
// answers.
func TestARestartClosesNothing(t *testing.T) {
	c, cache := newBooted(t)
	stopAPI := serveAPI(t, c.Nodes[0], c.api(t))
	agent := c.startWithAPI(t, "--pod-address-source="+string(cache))
	labtest.WaitReady(t, agent)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("x/web", "y/web", "tcp/80"))
	stopAPI()
	if err := agent.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	agent = c.startWithAPI(t, "--pod-address-source="+string(cache))
	labtest.WaitLog(t, agent, "Addresses of new pods are known")
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("x/web", "y/web", "tcp/80"), labtest.Yes("x/web", "y/db", "udp/80"))

	if labtest.Metrics(t, agent).Sum("netpol_boot_closed") != 0 {
		t.Error("the metric says that pods wait")
	}
}

// TestAnAgentThatDoesNotStartLeavesTheTable: wrong flags and gates, and a kubeconfig that cannot be read, end an
// agent. The table of an earlier one goes on to close what it selects, and a node without one stays as it is:
// a first installation with a wrong flag cuts nothing off.
func TestAnAgentThatDoesNotStartLeavesTheTable(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1")
	fails := func() {
		t.Helper()
		for flag, status := range map[string]int{"--feature-gates=EndPorts=true": 2, "--mark=0x1000": 2, "--no-such-flag": 2, "--snapshot-cache=s --manifests=.": 2, "--kubeconfig=/does/not/exist": 2} {
			agent := c.startAgent(t, lab.AgentConfig{Args: strings.Fields(flag)})
			<-agent.Ended()
			if name, _, _ := strings.Cut(flag, " "); agent.ExitCode() != status || !strings.Contains(agent.Log(), name) {
				t.Errorf("%s: exit status %d: %s", flag, agent.ExitCode(), agent.Log())
			}
		}
	}
	fails()
	c.Expect(t, labtest.Yes("y/web", "x/web", "tcp/80"))
	c.Apply(t, "deny", labtest.Policy("x", "web", "{podSelector: {}, policyTypes: [Ingress]}"))
	agent := c.startAgent(t, lab.AgentConfig{Manifests: c.Manifests.Dir()})
	labtest.WaitReady(t, agent)
	if err := agent.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	fails()
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("x/web", "y/web", "tcp/80"))
}

// TestAMissingFolderClosesAStart: a folder of --manifests that is not there yet is no reason to leave a node
// without rules.
func TestAMissingFolderClosesAStart(t *testing.T) {
	c, cache := newBooted(t)
	folder := filepath.Join(t.TempDir(), "later")
	agent := c.startAgent(t, lab.AgentConfig{Manifests: folder, Args: []string{"--pod-address-source=" + string(cache)}})
	c.waitSteered(t, "x/web")
	notReady(t, agent, folder+": no such file or directory")
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes(c.Nodes[0].Name, "x/web", "tcp/80"))
	if err := os.Symlink(c.Manifests.Dir(), folder); err != nil {
		t.Fatal(err)
	}
	labtest.WaitReady(t, agent)
	c.Expect(t, labtest.Yes("y/web", "x/web", "tcp/80"))
}

// TestAMissingFolderKeepsNoState: an agent whose state cannot be saved enforces, and counts it.
func TestAMissingFolderKeepsNoState(t *testing.T) {
	c, cache := newBooted(t)
	serveAPI(t, c.Nodes[0], c.api(t))
	agent := c.startWithAPI(t, "--pod-address-source="+string(cache), "--snapshot-cache=/does/not/exist/snapshot")
	labtest.WaitReady(t, agent)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"))
	labtest.Until(t, agent, 1, func(m lab.Metrics) float64 {
		return m.Sum("netpol_saved_writes_total", "file", "state", "result", "error")
	})
	labtest.WaitLog(t, agent, "State is not saved")
}

// TestANodeIsOpenedByHand: an empty table that replaces the closed one stays until the
// first snapshot, even across a crash.
func TestANodeIsOpenedByHand(t *testing.T) {
	c, cache := newBooted(t)
	agent := c.startWithAPI(t, "--pod-address-source="+string(cache))
	c.waitSteered(t, "x/web")
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"))
	c.openByHand(t)
	c.Expect(t, labtest.Yes("y/web", "x/web", "tcp/80"))
	agent.Kill()
	agent = c.startWithAPI(t, "--pod-address-source="+string(cache))
	labtest.WaitLog(t, agent, "stays in place until the first snapshot")
	c.Expect(t, labtest.Yes("y/web", "x/web", "tcp/80"))

	serveAPI(t, c.Nodes[0], c.api(t))
	labtest.WaitReady(t, agent)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
}

// closedTable returns docs/install/closed.nft for the node's pod ranges.
func closedTable(t *testing.T, node *lab.Node) string {
	t.Helper()
	table, err := os.ReadFile("../../../docs/install/closed.nft")
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("10.244.0.0/16", node.PodCIDRs[0].String(), "fd00:10:244::/56", node.PodCIDRs[1].String()).Replace(string(table))
}

// TestTheClosedTableOfTheDocumentation: the documented table, loaded before the kubelet
// starts, stays until the first snapshot.
func TestTheClosedTableOfTheDocumentation(t *testing.T) {
	c, cache := newBooted(t)
	node := c.Nodes[0]
	if _, err := node.Run(t.Context(), closedTable(t, node), "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	closed := []labtest.Expectation{
		labtest.No("y/web", "x/web", "tcp/80"), labtest.No("y/db", "x/web", "udp/80"), labtest.No("y/db", "y/far", "tcp/80"), labtest.No("y/far", "y/db", "tcp/80"),
		labtest.Yes(node.Name, "x/web", "tcp/80"), labtest.Yes("x/web", node.Name, "tcp/80"), labtest.Yes(node.Name, "y/far", "tcp/80"), labtest.Yes("node-2", node.Name, "tcp/80"),
	}
	c.Expect(t, closed...)
	agent := c.startWithAPI(t, "--pod-address-source="+string(cache))
	labtest.WaitLog(t, agent, "stays in place until the first snapshot")
	c.Expect(t, closed...)
	serveAPI(t, node, c.api(t))
	labtest.WaitReady(t, agent)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"), labtest.Yes("y/db", "y/far", "tcp/80"), labtest.Yes("y/far", "y/db", "tcp/80"))
}

// TestABootEnforcesTheSavedState: without an API server, a pod sends denied packets
// continuously. None passes once there is a table.
func TestABootEnforcesTheSavedState(t *testing.T) {
	boots(t, 1)
}

// TestHardBoots prints how long denied packets pass after the agent has started.
func TestHardBoots(t *testing.T) {
	labtest.NeedHard(t)
	boots(t, 30)
}

func boots(t *testing.T, count int) {
	c, cache := newBooted(t)
	args := []string{"--pod-address-source=" + string(cache), "--snapshot-cache=" + filepath.Join(t.TempDir(), "snapshot")}
	stopAPI := serveAPI(t, c.Nodes[0], c.api(t))
	agent := c.startWithAPI(t, args...)
	labtest.WaitReady(t, agent)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"))
	stopAPI()
	sink, err := c.Hosts["x/web"].Sink(9999)
	if err != nil {
		t.Fatal(err)
	}
	sent := c.sendWithoutEnd(t, c.Hosts["y/web"], netip.AddrPortFrom(c.Hosts["x/web"].Addr(lab.IPv4), 9999))
	var open, ready []time.Duration
	passed := 0
	for range count {
		if err := agent.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Nodes[0].Run(t.Context(), "", "nft", "flush", "ruleset"); err != nil {
			t.Fatal(err)
		}
		before := sink.Received()
		if err := labtest.Within(t, func() bool { return sink.Received() > before }); err != nil {
			t.Fatalf("without a table nothing passes: %v", err)
		}
		passes := labtest.NewCounter(t, c.Nodes[0], "udp dport 9999")
		start := time.Now()
		agent = c.startWithAPI(t, args...)
		c.waitSteered(t, "x/web")
		open = append(open, time.Since(start))
		// Packets that were in flight when the table was loaded have left once twenty more have
		// been sent.
		mark := sent.Load()
		if err := labtest.Within(t, func() bool { return sent.Load() >= mark+20 }); err != nil {
			t.Fatal(err)
		}
		last := passes.Left(t)
		labtest.WaitReady(t, agent)
		ready = append(ready, time.Since(start))
		c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
		passed += passes.Left(t) - last
	}
	slices.Sort(open)
	slices.Sort(ready)
	t.Logf("%d boots: first packets are steered %v (p50), %v (most) after the start of the agent, which is ready after %v (p50); %d denied packets passed after that",
		count, open[count/2], open[count-1], ready[count/2], passed)

	if passed > 0 {
		t.Errorf("%d denied packets passed", passed)
	}
}
