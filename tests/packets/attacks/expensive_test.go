package attacks

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
	"sigs.k8s.io/kube-network-policies/tests/packets/load"
)

// expensiveRate is the packets per second that the pod sends and that an expensive policy
// selects. Any pod can send this many.
const expensiveRate = 5000

// TestExpensivePolicies: a tenant writes a policy that is as expensive as possible and
// sends packets that it denies. Other pods can still open connections, at most ten times
// slower than without these packets, with a single queue.
func TestExpensivePolicies(t *testing.T) {
	for _, tc := range []struct {
		name string
		n    int
		item func(i int) string // of the list in rule
		rule string             // the rules, with %s for the list
	}{
		{"blocks", 60000, func(i int) string {
			return fmt.Sprintf("{ipBlock: {cidr: 172.%d.%d.%d/32}}", 16+i>>16, i>>8&255, i&255)
		}, "[{to: [%s]}]"},
		{"ports", 60000, func(i int) string { return fmt.Sprintf("{protocol: UDP, port: %d}", 1+i+i/(floodPort-1)) }, "[{ports: [%s]}]"},
		{"rules", 10000, func(i int) string {
			return fmt.Sprintf("{to: [{ipBlock: {cidr: 172.%d.%d.%d/32}}], ports: [{protocol: UDP, port: %d}]}", 16+i>>16, i>>8&255, i&255, floodPort)
		}, "[%s]"},
		{"selectors", 10000, func(i int) string {
			return fmt.Sprintf("{to: [{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [x%d]}]}, namespaceSelector: {}}], ports: [{port: 81}]}", i)
		}, "[%s]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := floodCluster(t)
			// The agent decides each packet, even of classes that were denied before.
			c.OneCPU = true
			agent := c.Start(t, "--remember-verdicts=0")[0]
			items := make([]string, tc.n)
			for i := range items {
				items[i] = tc.item(i)
			}
			egress := fmt.Sprintf(tc.rule, strings.Join(items, ", "))
			c.Enforce(t, agent, "db", onlyDB)
			c.Enforce(t, agent, "expensive", labtest.Policy("y", "expensive", "{podSelector: {matchLabels: {app: flooder}}, policyTypes: [Egress], egress: "+egress+"}"))
			c.Expect(t, labtest.No("y/flooder", "z/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))

			quiet := connects(t, c, "y/db", "x/web", time.Second)
			denied := labtest.Denied(labtest.Metrics(t, agent))
			flows, err := load.OpenFlows(c.Hosts["y/flooder"].NetNS())
			if err != nil {
				t.Fatal(err)
			}
			defer flows.Close()
			sent := make(chan error)
			go func() {
				_, err := flows.Send(load.Several(netip.AddrPortFrom(c.Hosts["z/web"].Addr(lab.IPv4), floodPort), floodPorts), 2*expensiveRate, expensiveRate)
				sent <- err
			}()
			series := connects(t, c, "y/db", "x/web", 2*time.Second)
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			t.Logf("quiet: %v; beside: %v", quiet, series)
			if series.failed > 0 || len(series.took)/2 < len(quiet.took)/10 {
				t.Errorf("%d connections in two seconds, %d failed; %d in one second without the packets", len(series.took), series.failed, len(quiet.took))
			}
			if got := labtest.Until(t, agent, denied+2*expensiveRate, labtest.Denied) - denied; got < 2*expensiveRate {
				t.Errorf("%v packets were denied, want %d", got, 2*expensiveRate)
			}
			if lost := lostBy(labtest.Metrics(t, agent), "decide"); lost > 0 {
				t.Errorf("%v packets found no room in the queue", lost)
			}
		})
	}
}
