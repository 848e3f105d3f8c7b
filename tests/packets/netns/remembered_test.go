package netns

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// Policies that allow y/db, or no pod, to connect to x/web.
var (
	letsDB   = labtest.Policy("x", "web", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}]}]}`)
	letsNone = labtest.Policy("x", "web", `{podSelector: {}, policyTypes: [Ingress]}`)
)

// awaitRemembering returns when the kernel remembers verdicts, as seen by connections of a
// pair that is not used otherwise.
func awaitRemembering(t *testing.T, c *cluster, agent *lab.Agent, from, to string) {
	t.Helper()
	if err := labtest.Within(t, func() bool {
		c.Expect(t, labtest.Yes(from, to, "udp/80"))
		return labtest.Metrics(t, agent).Sum("netpol_remembered_verdicts", "verdict", "accept") > 0
	}); err != nil {
		t.Fatal("the kernel remembers no verdict")
	}
}

// sourcePort is the source port of the last datagram. Each datagram gets another one,
// because with a port that was used before it would belong to an earlier accepted
// connection.
var sourcePort atomic.Uint32

// datagrams sends UDP datagrams, each of another connection.
func datagrams(t *testing.T, from *lab.Host, to netip.AddrPort, n int) {
	t.Helper()
	for range n {
		i := slices.IndexFunc(from.Addrs, func(a netip.Addr) bool { return a.Is4() == to.Addr().Is4() })
		port := uint16(20000 + sourcePort.Add(1)%40000)
		conn, err := from.ListenPacket(netip.AddrPortFrom(from.Addrs[i], port))
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := conn.WriteTo([]byte("remembered"), net.UDPAddrFromAddrPort(to)); err != nil {
			t.Error(err)
		}
		conn.Close()
	}
}

// remember sends datagrams until the kernel remembers that they are allowed, and returns
// their number for each address.
func remember(t *testing.T, from, to *lab.Host, sink *lab.Sink, port uint16) int {
	t.Helper()
	const decided = 2 // the verdict is remembered at the second decision
	for i := range decided {
		for _, addr := range to.Addrs {
			datagrams(t, from, netip.AddrPortFrom(addr, port), 1)
		}
		want := (i + 1) * len(to.Addrs)
		if err := labtest.Within(t, func() bool { return sink.Received() == want }); err != nil {
			t.Fatalf("%d of %d allowed datagrams arrived", sink.Received(), want)
		}
	}
	return decided
}

// TestVerdictsAreRemembered opens connections of one class. The agent decides the first
// two, the kernel the others, and all are counted.
func TestVerdictsAreRemembered(t *testing.T) {
	const connections = 50
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "y/web@1 app=web")
	socket := t.TempDir() + "/probe"
	agent := c.Start(t, "--probe-socket="+socket)[0]
	web, db := c.Hosts["x/web"], c.Hosts["y/db"]
	sink, err := web.Sink(9999)
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(t, "policies", letsDB)
	awaitRemembering(t, c, agent, "y/db", "x/web")

	decided := remember(t, db, web, sink, 9999)
	before, counted := labtest.Metrics(t, agent), func(m lab.Metrics) float64 {
		return m.Sum(answered, "protocol", "UDP", "verdict", "accept")
	}
	for _, addr := range web.Addrs {
		datagrams(t, db, netip.AddrPortFrom(addr, 9999), connections)
	}
	sent := connections * len(web.Addrs)
	if err := labtest.Within(t, func() bool { return sink.Received() == sent+decided*len(web.Addrs) }); err != nil {
		t.Errorf("%d of %d datagrams arrived", sink.Received()-decided*len(web.Addrs), sent)
	}
	if queued := labtest.Steered(labtest.Metrics(t, agent)) - labtest.Steered(before); queued != 0 {
		t.Errorf("%v of %d connections were decided by the agent", queued, sent)
	}
	want := counted(before) + float64(sent)
	if got := labtest.Until(t, agent, want, counted); got < want {
		t.Errorf("%v of %d datagrams are counted", got-counted(before), sent)
	}
	// The kernel remembers verdicts only for a time. Another connection renews them.
	if err := labtest.Within(t, func() bool {
		for _, addr := range web.Addrs {
			datagrams(t, db, netip.AddrPortFrom(addr, 9999), 1)
		}
		return rememberedFlows(t, c.Nodes[0], socket, 9999) == len(web.Addrs)
	}); err != nil {
		t.Errorf("%d of %d flows are shown as remembered", rememberedFlows(t, c.Nodes[0], socket, 9999), len(web.Addrs))
	}
}

// rememberedFlows returns how many flows to a port the kernel remembers according to the
// agent.
func rememberedFlows(t *testing.T, node *lab.Node, socket string, port uint16) (n int) {
	t.Helper()
	output, err := node.Run(t.Context(), "", labtest.AgentBinary, "flows", "--probe-socket", socket)
	if err == nil {
		err = flows.Decode(strings.NewReader(output), func(r *flows.Record) error {
			if r.Type == flows.TypeFlow && r.Port == port && r.Remembered != nil {
				n++
			}
			return nil
		})
	}
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return n
}

// TestChangesOfPolicyReachRememberedVerdicts alternately allows and denies a pair that
// sends continuously. Once a change is enforced, no packet passes that it denies, and every
// packet passes that it allows.
func TestChangesOfPolicyReachRememberedVerdicts(t *testing.T) {
	changeRepeatedly(t, 10)
}

// TestHardChangesOfPolicyReachRememberedVerdicts repeats that a thousand times.
func TestHardChangesOfPolicyReachRememberedVerdicts(t *testing.T) {
	labtest.NeedHard(t)
	changeRepeatedly(t, 1000)
}

func changeRepeatedly(t *testing.T, rounds int) {
	t.Helper()
	const packets = 20 // to each address
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "y/web@1 app=web")
	agent := c.Start(t)[0]
	web, db := c.Hosts["x/web"], c.Hosts["y/db"]
	c.Apply(t, "policies", letsDB)
	awaitRemembering(t, c, agent, "y/db", "x/web")

	// Connections of another class whose verdict also changes with each round.
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for _, addr := range web.Addrs {
		load.Go(func() {
			for ctx.Err() == nil {
				datagrams(t, db, netip.AddrPortFrom(addr, 9998), 1)
			}
		})
	}
	defer load.Wait()
	defer stop()

	change := func(policy string) { labtest.Enforced(t, agent, func() { c.Replace(t, "policies", policy) }) }
	for round := range rounds {
		// Another class in each round, so that packets that the agent decides late do not count.
		port := uint16(10000 + round)
		sink, err := web.Sink(port)
		if err != nil {
			t.Fatal(err)
		}
		want := (remember(t, db, web, sink, port) + packets) * len(web.Addrs)
		for _, addr := range web.Addrs {
			datagrams(t, db, netip.AddrPortFrom(addr, port), packets)
		}
		if err := labtest.Within(t, func() bool { return sink.Received() == want }); err != nil {
			t.Fatalf("round %d: %d of %d allowed packets arrived", round, sink.Received(), want)
		}
		if labtest.Metrics(t, agent).Sum("netpol_remembered_verdicts", "verdict", "accept") == 0 {
			t.Fatalf("round %d: no verdict is remembered", round)
		}
		change(letsNone)
		for _, addr := range web.Addrs {
			datagrams(t, db, netip.AddrPortFrom(addr, port), packets)
		}
		c.Expect(t, labtest.Yes("x/web", "y/db", "udp/80")) // packets that were sent before have arrived
		if got := sink.Received(); got != want {
			t.Fatalf("round %d: %d packets arrived although policies deny them", round, got-want)
		}
		change(letsDB)
	}
	m := labtest.Metrics(t, agent)
	t.Logf("%d changes; remembered: %v packets accepted, %v dropped", 2*rounds,
		m.Sum("netpol_remembered_packets_total", "verdict", "accept"), m.Sum("netpol_remembered_packets_total", "verdict", "drop"))
}
