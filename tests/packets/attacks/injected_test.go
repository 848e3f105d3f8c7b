package attacks

import (
	"fmt"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// TestAnsweredEntriesOfOthersEnd: another program adds entries that look answered, like conntrackd, and
// clears the marks of denied ones. They pass until the agent next looks at all connections, which an agent
// that starts does at once.
func TestAnsweredEntriesOfOthersEnd(t *testing.T) {
	labtest.SkipShort(t)
	c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/client@1", "y/db@1 app=db")
	agent := c.Start(t)[0]
	c.Enforce(t, agent, "policies", onlyDB)
	counter := countOneWay(t, c)
	passes := func() float64 { return labtest.Metrics(t, agent).Sum("netpol_conntrack_runs_total", "task", "pass") }
	for range 2 { // later ones are not because of the start or the policies
		before := passes()
		waitFor(t, func() bool { return passes() > before }, func() string { return "no connections are looked at" })
	}
	port := uint16(21000)
	for _, restart := range []bool{false, true} {
		var all []oneWay
		end := func(what string) {
			t.Helper()
			waitFor(t, func() bool {
				for _, o := range all {
					if o.passes(t, agent, "y/client") {
						return false
					}
				}
				return true
			}, func() string { return fmt.Sprintf("%s pass, restarted %v", what, restart) })
		}
		for _, mark := range []string{"0", "0x1000"} {
			for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
				port++
				o := oneWay{c, counter, family, port}
				o.run(t, fmt.Sprintf("conntrack -I -p udp -s $FROM -d $TO --sport $PORT --dport %d -t 600 -u SEEN_REPLY,ASSURED --mark %s", oneWayPort, mark), "y/client")
				all = append(all, o)
			}
		}
		if restart {
			agent.Kill()
			agent = c.StartOn(t, c.Nodes[0])
			labtest.WaitReady(t, agent)
		}
		end("added entries")
		for _, o := range all {
			o.run(t, "conntrack -U -p udp -s $FROM --sport $PORT --mark 0x1000", "y/client")
		}
		end("entries with changed marks")
		if !restart {
			labtest.WaitLog(t, agent, "another program may have added or changed")
		}
		if got := labtest.Metrics(t, agent).Sum("netpol_conntrack_blocked_total"); got < float64(len(all)) {
			t.Errorf("%v blocked connections are counted", got)
		}
	}
}
