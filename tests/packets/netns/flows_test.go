package netns

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// TestFlowRecords reads an agent's decisions from its socket and its log while a pod sends
// to more ports than it may have flows. Flows of other pods stay, and verdicts do not
// change.
func TestFlowRecords(t *testing.T) {
	const scanned, share = 1500, 512
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "y/web@1 app=web")
	socket := t.TempDir() + "/probe"
	node := c.Nodes[0]
	agent := c.Start(t, "--probe-socket="+socket, "--flow-log")[0]
	c.Apply(t, "policies", letsDB)
	c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("y/web", "x/web", "tcp/80"))
	web := c.Hosts["x/web"].Addrs[0]
	for port := range uint16(scanned) {
		datagrams(t, c.Hosts["y/web"], netip.AddrPortFrom(web, 1000+port), 1)
	}
	c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("y/web", "x/web", "tcp/80"))

	read := func() (found map[string]bool, scans int, s *flows.Summary) {
		output, err := node.Run(t.Context(), "", labtest.AgentBinary, "flows", "--probe-socket", socket)
		if err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		found = map[string]bool{}
		if err := flows.Decode(strings.NewReader(output), func(r *flows.Record) error {
			switch {
			case r.Type == flows.TypeAgent:
				s = r.Summary
			case r.Type == flows.TypeFlow && r.Port >= 1000 && r.Source.Pod == "web":
				scans++
			case r.Type == flows.TypeFlow && r.Protocol == "TCP" && r.Policy != nil:
				found[fmt.Sprintf("%s/%s -> %s/%s %s by %s", r.Source.Namespace, r.Source.Pod, r.Destination.Namespace, r.Destination.Pod, r.Verdict, r.Policy.Name)] = true
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return found, scans, s
	}
	var found map[string]bool
	var scans int
	var s *flows.Summary
	want := []string{"y/db -> x/web allow by web", "y/web -> x/web deny by web"}
	if labtest.Within(t, func() bool {
		found, scans, s = read()
		return found[want[0]] && found[want[1]] && s.Evicted > 0
	}) != nil {
		t.Errorf("flows %v, want %q; %+v", found, want, s)
	}
	if scans == 0 || scans > share || s.Flows > s.MaxFlows {
		t.Errorf("%d flows of the pod that scans, want at most %d; %+v", scans, share, s)
	}
	// The log is written every ten seconds.
	logged, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := lab.Poll(logged, func() (bool, error) {
		return strings.Contains(agent.Log(), `{"type":"flow","node":"`), nil
	}); err != nil {
		t.Errorf("the agent has not logged its flows: %v", err)
	}
	labtest.WaitReady(t, agent)
}
