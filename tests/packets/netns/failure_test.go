package netns

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// session is an established connection that echoes lines.
type session struct {
	net.Conn
	lines *bufio.Reader
}

// connect opens a TCP session and reads the greeting.
func (c *cluster) connect(t *testing.T, from, to string, family lab.Family) session {
	t.Helper()
	conn, err := c.Hosts[from].Dial(t.Context(), lab.TCP, netip.AddrPortFrom(c.Hosts[to].Addr(family), 80))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s := session{conn, bufio.NewReader(conn)}
	if greeting, err := s.lines.ReadString('\n'); err != nil || greeting != to+"\n" {
		t.Fatalf("greeting %q, %v", greeting, err)
	}
	return s
}

// echo sends a line and waits for it to return.
func (s session) echo(line string) error {
	s.SetDeadline(time.Now().Add(answerTime))
	if _, err := fmt.Fprintln(s, line); err != nil {
		return err
	}
	got, err := s.lines.ReadString('\n')
	if err == nil && strings.TrimSpace(got) != line {
		err = fmt.Errorf("got %q for %q", got, line)
	}
	return err
}

// TestWithoutAnAgent kills the agent. New connections of selected pods are dropped, or
// accepted with --fail-open=no-agent. Nothing else changes.
func TestWithoutAnAgent(t *testing.T) {
	for _, failOpen := range []string{"", "no-agent"} {
		t.Run("fail-open="+failOpen, func(t *testing.T) {
			c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db", "z/web@1 app=web")
			// Without an agent the kernel still accepts what it remembers.
			agent := c.Start(t, "--fail-open="+failOpen, "--remember-verdicts=0")[0]
			c.Apply(t, "policies", onlyDB)
			c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("y/web", "x/web", "tcp/80"))
			var established []session
			for _, family := range []lab.Family{lab.IPv4, lab.IPv6} {
				established = append(established, c.connect(t, "y/db", "x/web", family))
			}

			agent.Kill()
			allowed := map[bool]func(from, to, what string) labtest.Expectation{false: labtest.No, true: labtest.Yes}[failOpen != ""]
			c.Expect(t, allowed("y/db", "x/web", "tcp/80"), allowed("y/web", "x/web", "udp/80"),
				labtest.Yes("y/web", "z/web", "tcp/80"), labtest.Yes("x/web", "z/web", "tcp/80"), labtest.Yes("node-1", "x/web", "tcp/80"))
			for _, session := range established {
				if err := session.echo("still here"); err != nil {
					t.Errorf("an established connection: %v", err)
				}
			}

			labtest.WaitReady(t, c.StartOn(t, c.Nodes[0]))
			c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("y/web", "x/web", "udp/80"))
			for _, session := range established {
				if err := session.echo("and now"); err != nil {
					t.Errorf("an established connection after the restart: %v", err)
				}
			}
		})
	}
}

// TestFullQueue sends more packets than the queue holds while the agent is stopped. By
// default, packets that do not fit are dropped and counted; with --fail-open=queue-full they
// are accepted.
func TestFullQueue(t *testing.T) {
	const sent = 30000
	for _, failOpen := range []string{"", "queue-full"} {
		t.Run("fail-open="+failOpen, func(t *testing.T) {
			c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
			labtest.NeedConntrack(t, sent)
			c.OneCPU = true
			agent := c.Start(t, "--fail-open="+failOpen)[0]
			sink, err := c.Hosts["x/web"].Sink(9999)
			if err != nil {
				t.Fatal(err)
			}
			c.Enforce(t, agent, "policies", onlyDB)
			c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
			before := labtest.Metrics(t, agent)
			counter := labtest.NewCounter(t, c.Nodes[0], "udp dport 9999")

			if err := agent.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			c.flood(t, "y/web", "x/web", 9999, sent)
			passed := sink.Received()
			if err := agent.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}

			accounted := func(m lab.Metrics) float64 {
				return deniedUDP(m) - deniedUDP(before) + labtest.Lost(m) - labtest.Lost(before) + float64(counter.Left(t))
			}
			arrived := float64(counter.Arrived(t)) // a slow machine may lose some before
			if got := labtest.Until(t, agent, arrived, accounted); got != arrived {
				t.Errorf("of %d packets %v arrived at the node and %v are accounted for", sent, arrived, got)
			}
			now := labtest.Metrics(t, agent)
			t.Logf("passed %d, denied %v, dropped by the queue %v", passed, labtest.Denied(now)-labtest.Denied(before), labtest.Lost(now)-labtest.Lost(before))
			switch {
			case failOpen != "" && passed == 0:
				t.Error("nothing passed the full queue")
			case failOpen == "" && (counter.Left(t) != 0 || sink.Received() != 0):
				t.Errorf("%d denied packets left the node and %d were delivered", counter.Left(t), sink.Received())
			case failOpen == "" && labtest.Lost(now) == labtest.Lost(before):
				t.Error("the queue was not full")
			}
			c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("y/web", "x/web", "tcp/80"))
		})
	}
}

// deniedUDP excludes the earlier TCP probes, one of which may be counted late.
func deniedUDP(m lab.Metrics) float64 {
	return m.Sum("packet_count", "protocol", "UDP", "verdict", "drop")
}

// flood sends datagrams from several sockets as fast as it can.
func (c *cluster) flood(t *testing.T, from, to string, port uint16, count int) {
	t.Helper()
	const sockets = 4
	done := make(chan error, sockets)
	for range sockets {
		conn, err := c.Hosts[from].Dial(t.Context(), lab.UDP, netip.AddrPortFrom(c.Hosts[to].Addr(lab.IPv4), port))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go func() {
			var err error
			for i := 0; i < count/sockets && err == nil; i++ {
				_, err = conn.Write([]byte("flood"))
			}
			done <- err
		}()
	}
	for range sockets {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}
