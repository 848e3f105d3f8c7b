package netns

import (
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/lab"
	"sigs.k8s.io/kube-network-policies/tests/lab/labtest"
)

// TestAServerThatPushesAfterConntrackIsFlushed: to the kernel, its next packet begins a
// connection to the client, which policies deny. The connection goes on when the client sends.
func TestAServerThatPushesAfterConntrackIsFlushed(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db")
	agent := c.Start(t)[0]
	c.Apply(t, "policies", onlyDB+labtest.Policy("x", "out", `{podSelector: {}, policyTypes: [Egress]}`))
	c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("x/web", "y/db", "tcp/80"))
	listener := listenOn(t, c.Hosts["x/web"], pairPort)
	p := c.openPair(t, "y/db", listener, netip.AddrPortFrom(c.Hosts["x/web"].Addr(lab.IPv4), pairPort))
	p.send(t, "before")
	p.received(t, "before", passTime)

	labtest.ForgetConnections(t, c.Nodes[0])
	denied := labtest.Denied(labtest.Metrics(t, agent))
	if _, err := io.WriteString(p.server, "pushed"); err != nil {
		t.Fatal(err)
	}
	if err := labtest.Within(t, func() bool { return labtest.Denied(labtest.Metrics(t, agent)) > denied }); err != nil {
		t.Fatal("the agent has dropped no packet of the server")
	}
	p.client.SetReadDeadline(time.Now())
	if n, err := p.client.Read(make([]byte, 1)); n > 0 || !os.IsTimeout(err) {
		t.Fatalf("the client received %d bytes, %v", n, err)
	}
	if _, err := io.WriteString(p.client, "asked!"); err != nil {
		t.Fatal(err)
	}
	for word, end := range map[string]io.Reader{"asked!": p.server, "pushed": p.client} {
		got := make([]byte, len(word))
		p.client.SetReadDeadline(time.Now().Add(passTime))
		p.server.SetReadDeadline(time.Now().Add(passTime))
		if _, err := io.ReadFull(end, got); err != nil || string(got) != word {
			t.Errorf("received %q, %v, want %q", got, err, word)
		}
	}
}
