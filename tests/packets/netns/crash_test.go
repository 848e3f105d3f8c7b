package netns

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// conversation is an established connection on which data is echoed continuously.
type conversation struct {
	answered atomic.Int64
	failure  atomic.Pointer[error]
}

// converse opens a connection between two hosts and uses it until the test ends.
func converse(t *testing.T, from, to *lab.Host) *conversation {
	t.Helper()
	at := netip.AddrPortFrom(to.Addr(lab.IPv4), 7000)
	listener, err := to.Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, conn)
	}()
	conn, err := from.Dial(t.Context(), lab.TCP, at)
	if err != nil {
		t.Fatal(err)
	}
	c := &conversation{}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for range ticker.C {
			if err := echo(conn); err != nil {
				c.failure.Store(&err)
				return
			}
			c.answered.Add(1)
		}
	}()
	return c
}

func echo(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(answerTime))
	if _, err := conn.Write([]byte("still there?")); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, len("still there?")))
	return err
}

// TestCrashesAreNotNoticed kills the agent repeatedly and starts it again, as the kubelet does.
// Denied packets do not pass, established connections continue, and new ones work again.
func TestCrashesAreNotNoticed(t *testing.T) {
	crashes(t)
}

// TestHardCrashes prints how long it takes until new connections work again.
func TestHardCrashes(t *testing.T) {
	labtest.NeedHard(t)
	for i := range 25 {
		t.Run(fmt.Sprint(i), crashes)
	}
}

// crashRounds is how often the agent is killed, plus once its successor.
const crashRounds = 3

func crashes(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	c.Apply(t, "policies", onlyDB)
	agent := c.Start(t)[0]
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
	sink, err := c.Hosts["x/web"].Sink(9999)
	if err != nil {
		t.Fatal(err)
	}
	denied := c.sendWithoutEnd(t, c.Hosts["y/web"], netip.AddrPortFrom(c.Hosts["x/web"].Addr(lab.IPv4), 9999))
	talk := converse(t, c.Hosts["y/db"], c.Hosts["x/web"])

	r := rand.New(rand.NewPCG(1, 0))
	kills := 0
	killAfter := func(maxMillis int) {
		<-time.After(time.Duration(r.IntN(maxMillis)) * time.Millisecond)
		agent.Kill()
		agent = c.StartOn(t, c.Nodes[0])
		kills++
	}
	var outages []time.Duration
	for i := range crashRounds {
		killAfter(400)
		if i%2 == 1 {
			killAfter(200) // also while the successor starts
		}
		outages = append(outages, c.untilAnswered(t, i))
	}
	labtest.WaitReady(t, agent)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
	slices.Sort(outages)
	t.Logf("%d kills: new connections work again after %v (p50), %v (p99); %d of %d denied packets passed; %d answers on an established connection",
		kills, outages[len(outages)/2], outages[len(outages)*99/100], sink.Received(), denied.Load(), talk.answered.Load())
	if sink.Received() > 0 || denied.Load() == 0 {
		t.Errorf("%d of %d denied packets passed", sink.Received(), denied.Load())
	}
	if err := talk.failure.Load(); err != nil || talk.answered.Load() == 0 {
		t.Errorf("the established connection has %d answers and ended: %v", talk.answered.Load(), err)
	}
	if err := agent.Stop(t.Context()); err != nil {
		t.Errorf("the agent ends with %v", err)
	}
}

// sendWithoutEnd sends a thousand datagrams per second, each from a new port, until the
// test ends.
func (c *cluster) sendWithoutEnd(t *testing.T, from *lab.Host, to netip.AddrPort) *atomic.Int64 {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	sent := &atomic.Int64{}
	go func() {
		defer close(done)
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			<-ticker.C
			conn, err := from.Dial(ctx, lab.UDP, to)
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("denied"))
			_ = conn.Close()
			sent.Add(1)
		}
	}()
	return sent
}

// untilAnswered returns how long it takes until a new connection of y/db is answered.
func (c *cluster) untilAnswered(t *testing.T, crash int) time.Duration {
	t.Helper()
	begin := time.Now()
	to := netip.AddrPortFrom(c.Hosts["x/web"].Addr(lab.IPv4), 80)
	if err := labtest.Within(t, func() bool {
		answer, err := c.Hosts["y/db"].Probe(t.Context(), lab.UDP, to, 20*time.Millisecond)
		return err == nil && answer.Outcome == lab.Connected
	}); err != nil {
		t.Fatalf("after crash %d new connections do not work again: %v", crash, err)
	}
	return time.Since(begin)
}
