package netns

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// load opens new connections to x/web at a fixed rate, from y/db, which policies allow, and
// from y/web, which they deny.
type load struct {
	opened, failed atomic.Int64
	denied         *lab.Sink
	sent           atomic.Int64 // denied datagrams

	mu    sync.Mutex
	times []time.Duration // of opened connections

	stop func()
}

// answerTime is how long a client waits. UDP clients send once, so one lost packet is a
// failure.
const answerTime = 20 * time.Second

// startLoad opens rate connections per second, alternating TCP and UDP, until the test ends
// or stop is called.
func startLoad(t *testing.T, c *cluster, rate int) *load {
	t.Helper()
	l := &load{}
	var err error
	if l.denied, err = c.Hosts["x/web"].Sink(9999); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	l.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(l.stop)
	running.Go(func() {
		ticker := time.NewTicker(time.Second / time.Duration(rate))
		defer ticker.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			proto := []lab.Proto{lab.TCP, lab.UDP}[i%2]
			addr := c.Hosts["x/web"].Addrs[i/2%2]
			running.Go(func() { l.open(c, proto, netip.AddrPortFrom(addr, 80)) })
			if i%10 == 0 {
				l.sendDenied(ctx, c, netip.AddrPortFrom(addr, 9999))
			}
		}
	})
	return l
}

func (l *load) open(c *cluster, proto lab.Proto, to netip.AddrPort) {
	begin := time.Now()
	answer, err := c.Hosts["y/db"].Probe(context.Background(), proto, to, answerTime)
	took := time.Since(begin)
	l.opened.Add(1)
	if err != nil || answer.Outcome != lab.Connected {
		l.failed.Add(1)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times = append(l.times, took)
}

func (l *load) sendDenied(ctx context.Context, c *cluster, to netip.AddrPort) {
	conn, err := c.Hosts["y/web"].Dial(ctx, lab.UDP, to)
	if err != nil {
		return
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("denied")); err == nil {
		l.sent.Add(1)
	}
}

// p99 returns the 99th percentile of the time to open a connection since the last call.
func (l *load) p99() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	times := l.times
	l.times = nil
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[len(times)*99/100]
}

// surge is a node whose agents replace each other like the pods of a DaemonSet with
// maxSurge 1: the new one must be ready before the old one is stopped.
type surge struct {
	c      *cluster
	node   int // its index
	turn   int
	agent  *lab.Agent
	binary string // empty for the agent under test
}

// next starts another agent, waits until it is ready, and stops the previous one.
func (s *surge) next(t *testing.T, args ...string) {
	t.Helper()
	old := s.agent
	s.agent = s.start(t, args...)
	labtest.WaitReady(t, s.agent)
	if old == nil {
		return
	}
	for _, agent := range []*lab.Agent{old, s.agent} {
		if n := labtest.Metrics(t, agent).Sum("netpol_steer_external_changes_total"); n != 0 {
			t.Errorf("an agent counts %v changes by others", n)
		}
	}
	if err := old.Stop(t.Context()); err != nil {
		t.Errorf("the old agent ends with %v", err)
	}
	if log := old.Log(); strings.Contains(log, "Remembered verdicts could not be changed") {
		t.Errorf("the old agent logs:\n%s", log)
	}
}

// start starts an agent. Its metrics port differs from that of its predecessor and of its
// successor.
func (s *surge) start(t *testing.T, args ...string) *lab.Agent {
	t.Helper()
	s.turn++
	agent, err := s.c.Nodes[s.node].StartAgent(lab.AgentConfig{
		Binary: cmp.Or(s.binary, labtest.AgentBinary), Manifests: s.c.Manifests.Dir(), Args: args,
		Metrics: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 9080+uint16(s.turn%3)),
	})
	if err != nil {
		t.Fatal(err)
	}
	turn := s.turn
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of agent %d (%v):\n%s", turn, args, agent.Log())
		}
		agent.Kill() // before the folders are removed that it may write
	})
	return agent
}

// TestRolloutsLoseNoPacket replaces the agent while connections are opened. All allowed
// connections are established, and no denied packet passes.
func TestRolloutsLoseNoPacket(t *testing.T) {
	rollouts(t, 3, 100)
}

// TestHardRollouts prints how long connections take to open during rollouts, compared with
// rollouts on another node: a process that starts takes CPU time from all others, whether
// it takes over or not.
func TestHardRollouts(t *testing.T) {
	labtest.NeedHard(t)
	rollouts(t, 10, 500)
}

func rollouts(t *testing.T, count, rate int) {
	c := newCluster(t, 2, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	c.Apply(t, "policies", onlyDB)
	s, otherNode := &surge{c: c}, &surge{c: c, node: 1}
	s.next(t)
	otherNode.next(t)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
	l := startLoad(t, c, rate)
	if err := labtest.Within(t, func() bool { return l.opened.Load() >= int64(rate) }); err != nil {
		t.Fatal(err)
	}
	quietP99 := l.p99()
	for range count {
		otherNode.next(t)
	}
	otherNodeP99 := l.p99()
	for range count {
		s.next(t)
	}
	l.stop()
	t.Logf("%d rollouts, %d new connections: %d failed; %d of %d denied packets passed; p99 %v while nothing changes, %v beside rollouts of another node, %v with rollouts",
		count, l.opened.Load(), l.failed.Load(), l.denied.Received(), l.sent.Load(), quietP99, otherNodeP99, l.p99())
	if l.failed.Load() > 0 || l.opened.Load() == 0 {
		t.Errorf("%d of %d connections failed", l.failed.Load(), l.opened.Load())
	}
	if l.denied.Received() > 0 || l.sent.Load() == 0 {
		t.Errorf("%d of %d denied packets passed", l.denied.Received(), l.sent.Load())
	}
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
}

// TestOlderAgentTakesOverWhenTheNewerOneEnds: a rollout is undone by deleting the new pod,
// which ends or is killed.
func TestOlderAgentTakesOverWhenTheNewerOneEnds(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	c.Apply(t, "policies", onlyDB)
	s := &surge{c: c}
	older := s.start(t)
	labtest.WaitReady(t, older)
	newer := s.start(t)
	labtest.WaitReady(t, newer)
	l := startLoad(t, c, 50)
	if err := newer.Stop(t.Context()); err != nil {
		t.Errorf("the newer agent ends with %v", err)
	}
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
	l.stop()
	if l.failed.Load() > 0 || l.denied.Received() > 0 {
		t.Errorf("%d of %d connections failed, %d of %d denied packets passed", l.failed.Load(), l.opened.Load(), l.denied.Received(), l.sent.Load())
	}

	newer = s.start(t)
	labtest.WaitReady(t, newer)
	newer.Kill()
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
	labtest.WaitReady(t, older)
}

// bindQueue simulates another program that uses a queue number.
func bindQueue(t *testing.T, node *lab.Node, number uint16) io.Closer {
	t.Helper()
	var claim io.Closer
	if err := node.Do(func() (err error) {
		claim, err = queue.Numbers{Kernel: queue.Host{}}.Claim(t.Context(), number)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = claim.Close() })
	return claim
}

// TestQueueNumbersInUse: another program uses the first queue number. The agent uses the
// following numbers, and says so.
func TestQueueNumbersInUse(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	bindQueue(t, c.Nodes[0], 100)
	agent := c.Start(t, "--nfqueue-id=100")[0]
	c.Apply(t, "policies", onlyDB)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
	labtest.WaitLog(t, agent, fmt.Sprintf(`"Queue numbers are in use, the next free ones are taken" wanted=100 first=%d`, 100+2*min(runtime.NumCPU(), 4)+3))
}

// TestAddressOfMetricsIsWaitedFor: an agent works and answers at its own socket while
// another one has the address of its metrics.
func TestAddressOfMetricsIsWaitedFor(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db")
	node := c.Nodes[0]
	old := c.Start(t)[0]
	socket := t.TempDir() + "/probe"
	probe := func(endpoint string) error {
		output, err := node.Run(t.Context(), "", labtest.AgentBinary, "probe", "--probe-socket", socket, endpoint)
		if err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		return nil
	}
	if err := probe("readyz"); err == nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("without a socket the probe succeeds or does not name it: %v", err)
	}
	next := c.StartOn(t, node, "--probe-socket="+socket)
	var err error
	if labtest.Within(t, func() bool { err = probe("readyz"); return err == nil }) != nil {
		t.Fatalf("not ready by its socket: %v", err)
	}
	if err := probe("livez"); err != nil {
		t.Error(err)
	}
	labtest.WaitLog(t, next, "Not served until the address is free")
	if err := old.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	labtest.WaitReady(t, next)
}
