package attacks

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
	"sigs.k8s.io/kube-network-policies/tests/packets/load"
)

const (
	floodPort  = 9000 // the first of floodPorts
	floodPorts = 4
	// floodRate is the new flows per second. Each needs a verdict.
	floodRate = 80000
)

// onlyDB allows only app=db to connect to x/web.
var onlyDB = labtest.Policy("x", "only-db", `{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}]}]}`)

// closed isolates the pods of z.
var closed = labtest.Policy("z", "closed", `{podSelector: {}, policyTypes: [Ingress]}`)

// expensive denies the flood after many blocks that do not match.
func expensive(namespace string) string {
	const blocks = 10000
	var b strings.Builder
	for i := range blocks {
		fmt.Fprintf(&b, "{ipBlock: {cidr: 172.16.%d.%d/32}}, ", i/256, i%256)
	}
	return labtest.Policy(namespace, "expensive", `{podSelector: {matchLabels: {app: flooder}}, policyTypes: [Egress], egress: [{to: [`+b.String()+`]}]}`)
}

// TestFloodOfNewFlows: one sender opens floodRate new flows per second while another pod
// connects to a server repeatedly. None of the other pod's connections fails, and none of
// its packets is lost.
func TestFloodOfNewFlows(t *testing.T) {
	for _, flood := range []struct {
		name     string
		from, to string
		policies string
	}{
		{"by a pod", "y/flooder", "x/web", onlyDB},
		{"by a pod with an expensive policy", "y/flooder", "z/web", onlyDB + expensive("y")},
		{"from outside", "outside", "z/sink", onlyDB + closed},
	} {
		t.Run(flood.name, func(t *testing.T) {
			c := floodCluster(t)
			agent := c.Start(t)[0]
			c.Apply(t, "policies", flood.policies)
			c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("z/sink", "x/web", "tcp/80"))
			quiet := connects(t, c, "y/db", "x/web", connectTime())
			t.Logf("quiet:   %v", quiet)
			steered := labtest.Steered(labtest.Metrics(t, agent))
			stop := startFlood(t, c.Hosts[flood.from], c.Hosts[flood.to])
			flooded := connects(t, c, "y/db", "x/web", connectTime())
			sent, took := stop()
			t.Logf("flooded: %v, beside %.0f flows a second", flooded, float64(sent)/took.Seconds())
			now := labtest.Metrics(t, agent)
			t.Logf("steered %.0f, of which %.0f exceeded their share and %.0f were lost",
				labtest.Steered(now)-steered, now.Sum("nfqueue_packet_id", "purpose", "overflow"), lostBy(now, "overflow"))
			if flooded.failed > 0 {
				t.Errorf("%d connections failed", flooded.failed)
			}
			if lost := lostBy(now, "decide"); lost > 0 {
				t.Errorf("%v packets within shares were lost", lost)
			}
			c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("z/sink", "x/web", "tcp/80"))
		})
	}
}

// TestFloodWhileAgentIsStopped stops the agent and sends packets until a queue has lost some.
// Packets that another pod sends afterwards are still queued, and evaluated when the agent
// continues.
func TestFloodWhileAgentIsStopped(t *testing.T) {
	for _, flood := range []struct{ name, from, to string }{
		{"by a pod", "y/flooder", "x/web"},
		{"from outside", "outside", "z/sink"},
	} {
		t.Run(flood.name, func(t *testing.T) {
			c := floodCluster(t)
			labtest.NeedConntrack(t, 2*floodBatch)
			c.OneCPU = true
			agent := c.Start(t)[0]
			c.Apply(t, "policies", onlyDB+closed)
			c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("z/sink", "x/web", "tcp/80"))
			flows, err := load.OpenFlows(c.Hosts[flood.from].NetNS())
			if err != nil {
				t.Fatal(err)
			}
			defer flows.Close()
			if err := agent.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			floodErr := floodUntilLost(flows, c.Nodes[0], netip.AddrPortFrom(c.Hosts[flood.to].Addr(lab.IPv4), floodPort))
			connected := make(chan connections, 1)
			go func() { connected <- connects(t, c, "y/db", "x/web", 0) }()
			if err := agent.Signal(syscall.SIGCONT); err != nil || floodErr != nil {
				t.Fatal(err, floodErr)
			}
			if series := <-connected; series.failed > 0 {
				t.Errorf("%v", series)
			}

			now := labtest.Metrics(t, agent)
			if lost := lostBy(now, "decide"); lost > 0 {
				t.Errorf("%v packets found no room in the queue that shares are for", lost)
			}
			if lostBy(now, "overflow") == 0 {
				t.Error("the queue for what exceeds a share lost nothing, and some queue did")
			}
		})
	}
}

// floodBatch is more than any queue holds.
const floodBatch = 30000

// floodUntilLost sends batches of new flows until a queue of the node has lost packets. One
// batch is enough, unless a busy machine loses packets before they reach the node's queues.
func floodUntilLost(flows *load.Flows, node *lab.Node, to netip.AddrPort) error {
	const batches = 20
	next := load.Several(to, floodPorts)
	for range batches {
		if _, err := flows.Send(next, floodBatch, 0); err != nil {
			return err
		}
		var stats []queue.Stat
		if err := node.Do(func() (err error) {
			stats, err = queue.Host{}.Stats()
			return err
		}); err != nil {
			return err
		}
		for _, s := range stats {
			if s.QueueDropped+s.UserDropped > 0 {
				return nil
			}
		}
	}
	return fmt.Errorf("no queue lost any of %d packets", batches*floodBatch)
}

// floodCluster returns a cluster with one node: a selected server, a client that may
// connect to it, a pod and an external host that flood, and pods that receive the flood.
func floodCluster(t *testing.T) *labtest.Cluster {
	t.Helper()
	c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "y/flooder@1 app=flooder", "z/web@1 app=web", "z/sink@1 app=sink")
	outside, err := c.AddHost(t.Context(), c.Nodes[0], "outside", netip.MustParseAddr("192.0.2.7"))
	if err != nil {
		t.Fatal(err)
	}
	c.Hosts["outside"] = outside
	return c
}

// lostBy returns how many packets the queues of a purpose have lost.
func lostBy(m lab.Metrics, purpose string) float64 {
	return m.Sum("nfqueue_queue_dropped", "purpose", purpose) + m.Sum("nfqueue_user_dropped", "purpose", purpose) +
		m.Sum("netpol_queue_lost_total", "purpose", purpose)
}

// connectTime is how long connections are opened.
func connectTime() time.Duration {
	if os.Getenv("HARD") != "" {
		return 10 * time.Second
	}
	return time.Second
}

// connections are the results of a series of connections.
type connections struct {
	took          []time.Duration // of established connections
	failed        int
	retransmitted int // first packets sent more than once
}

func (c connections) String() string {
	if len(c.took) == 0 {
		return fmt.Sprintf("no connections, %d failed", c.failed)
	}
	slices.Sort(c.took)
	quantile := func(q float64) time.Duration { return c.took[int(q*float64(len(c.took)-1))].Round(time.Microsecond) }
	return fmt.Sprintf("%d connections, %d failed, %d sent again, p50 %v, p90 %v, p99 %v, max %v",
		len(c.took), c.failed, c.retransmitted, quantile(0.5), quantile(0.9), quantile(0.99), quantile(1))
}

// connects opens connections one after the other.
func connects(t *testing.T, c *labtest.Cluster, from, to string, during time.Duration) (series connections) {
	t.Helper()
	at := netip.AddrPortFrom(c.Hosts[to].Addr(lab.IPv4), 80)
	for end := time.Now().Add(during); len(series.took)+series.failed == 0 || time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(t.Context(), labtest.ChangeTimeout)
		began := time.Now()
		conn, err := c.Hosts[from].Dial(ctx, lab.TCP, at)
		cancel()
		if err != nil {
			series.failed++
			continue
		}
		series.took = append(series.took, time.Since(began))
		series.retransmitted += retransmitted(t, conn)
		conn.Close()
		time.Sleep(time.Millisecond)
	}
	return series
}

// retransmitted returns how many packets the client of a new connection retransmitted.
func retransmitted(t *testing.T, conn net.Conn) int {
	t.Helper()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	if cerr := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return int(info.Total_retrans)
}

// startFlood sends new UDP flows until stop is called.
func startFlood(t *testing.T, from, to *lab.Host) (stop func() (sent int, took time.Duration)) {
	t.Helper()
	flows, err := load.OpenFlows(from.NetNS())
	if err != nil {
		t.Fatal(err)
	}
	next := load.Several(netip.AddrPortFrom(to.Addr(lab.IPv4), floodPort), floodPorts)
	began, quit, ended := time.Now(), make(chan struct{}), make(chan error)
	sent := 0
	go func() {
		for {
			select {
			case <-quit:
				ended <- nil
				return
			default:
			}
			if _, err := flows.Send(next, floodRate/10, floodRate); err != nil {
				ended <- err
				return
			}
			sent += floodRate / 10
		}
	}()
	return func() (int, time.Duration) {
		close(quit)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		if err := flows.Close(); err != nil {
			t.Error(err)
		}
		return sent, took
	}
}
