package netns

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// TestConnectionsAfterConntrackIsFlushed: the kernel treats the next packet as the first of
// a connection, whichever end sends it, so policies must allow connections of both ends.
func TestConnectionsAfterConntrackIsFlushed(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db")
	agent := c.Start(t)[0]
	web, node := c.Hosts["x/web"], c.Nodes[0]
	listener := listenOn(t, web, pairPort)
	webMayConnect := labtest.Policy("x", "out", `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}}]}]}`)
	for _, tc := range []struct {
		name, policies string
		goesOn         bool
	}{
		{"both directions are allowed", onlyDB + webMayConnect, true},
		{"the server may open no connection", onlyDB + labtest.Policy("x", "out", `{podSelector: {}, policyTypes: [Egress]}`), false},
		{"the client accepts none", onlyDB + labtest.Policy("y", "in", `{podSelector: {}, policyTypes: [Ingress]}`), false},
		{"no policy selects an end", labtest.Policy("z", "none", `{podSelector: {}}`), true},
	} {
		for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
			t.Run(tc.name+", "+family.String(), func(t *testing.T) {
				c.Replace(t, "policies", tc.policies)
				c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.NewExpectation("x/web", "y/db", "tcp/80", tc.goesOn))
				p := c.openPair(t, "y/db", listener, netip.AddrPortFrom(web.Addr(family), pairPort))
				p.send(t, "before")
				p.received(t, "before", passTime)
				for _, ends := range [][2]net.Conn{{p.server, p.client}, {p.client, p.server}} {
					labtest.ForgetConnections(t, node)
					before := labtest.Metrics(t, agent)
					if _, err := io.WriteString(ends[0], "pushed"); err != nil {
						t.Fatal(err)
					}
					if !tc.goesOn {
						awaitLate(t, agent, before, "TCP", "drop")
						continue
					}
					ends[1].SetReadDeadline(time.Now().Add(passTime))
					got := make([]byte, len("pushed"))
					if _, err := io.ReadFull(ends[1], got); err != nil {
						t.Errorf("received %q, %v", got, err)
					}
				}
				if !tc.goesOn {
					p.silent(t)
				}
			})
		}
	}
}
