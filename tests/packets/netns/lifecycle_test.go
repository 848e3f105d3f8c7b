package netns

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// TestAgentCapabilities compares the capabilities of the running agent with those of
// install.yaml.
func TestAgentCapabilities(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web")
	agent := c.Start(t)[0]
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", agent.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
		if want := set + ":\t0000000000001000\n"; !strings.Contains(string(status), want) {
			t.Errorf("no %q in the status of the agent:\n%s", want, status)
		}
	}
	c.Apply(t, "policies", onlyDB)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"))
}

// TestRestartsDeny floods a denied pair while the agent is stopped, killed and started
// again.
func TestRestartsDeny(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	agent := c.Start(t)[0]
	sink, err := c.Hosts["x/web"].Sink(9999)
	if err != nil {
		t.Fatal(err)
	}
	c.Enforce(t, agent, "policies", onlyDB)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))

	ctx, stop := context.WithCancel(t.Context())
	var sent atomic.Int64
	var flood sync.WaitGroup
	for _, addr := range c.Hosts["x/web"].Addrs {
		flood.Go(func() {
			for ctx.Err() == nil { // a new flow for each datagram
				conn, err := c.Hosts["y/web"].Dial(ctx, lab.UDP, netip.AddrPortFrom(addr, 9999))
				if err != nil {
					return
				}
				conn.Write([]byte("restart"))
				conn.Close()
				sent.Add(1)
			}
		})
	}
	for round := range 6 {
		if round%2 == 0 {
			if err := agent.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		} else {
			agent.Kill()
		}
		agent = c.Start(t)[0]
		c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"))
	}
	stop()
	flood.Wait()
	t.Logf("%d denied flows during 6 restarts", sent.Load())
	if got := sink.Received(); got != 0 {
		t.Errorf("%d of %d denied datagrams were delivered", got, sent.Load())
	}
}

// TestChangesLoseNoPacket opens new flows of an allowed pair, one after the other and many
// at a time, while the set of selected pods changes a hundred times.
func TestChangesLoseNoPacket(t *testing.T) {
	labtest.SkipShort(t)
	const changes, clients = 100, 8
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "y/web@1 app=web", "z/a@1 app=a", "z/b@1 app=b")
	agent := c.Start(t)[0]
	c.Apply(t, "policies", onlyDB)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))

	ctx, stop := context.WithCancel(t.Context())
	var asked, unanswered atomic.Int64
	var flows sync.WaitGroup
	for client := range clients {
		addr := netip.AddrPortFrom(c.Hosts["x/web"].Addrs[client%2], 80)
		flows.Go(func() {
			for ctx.Err() == nil {
				answer, err := c.Hosts["y/db"].Probe(context.WithoutCancel(ctx), lab.UDP, addr, answerTime)
				asked.Add(1)
				if err != nil || answer.Outcome != lab.Connected {
					unanswered.Add(1)
				}
			}
		})
	}
	// Three states, so that each differs from the two previous ones.
	states := []string{
		labtest.Policy("z", "a", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Ingress, Egress]}`),
		labtest.Policy("z", "b", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}`),
		labtest.Policy("z", "all", `{podSelector: {}, policyTypes: [Ingress]}`),
	}
	syncs := func(m lab.Metrics) float64 { return m.Sum("netpol_steer_syncs_total", "result", "success") }
	for i := range changes {
		before := syncs(labtest.Metrics(t, agent))
		c.Replace(t, "changing", states[i%len(states)])
		if got := labtest.Until(t, agent, before+1, syncs); got == before {
			t.Fatalf("change %d is not effective", i)
		}
	}
	stop()
	flows.Wait()
	t.Logf("%d new flows during %d changes", asked.Load(), changes)
	if got := unanswered.Load(); got != 0 || asked.Load() < changes {
		t.Errorf("%d of %d flows had no answer", got, asked.Load())
	}
}

// TestPacketsWaitForTheirPod sends more than a batch of packets to a pod whose object
// arrives while they are pending. All are answered. Packets are pending for a second; if
// the machine takes longer, the attempt is repeated.
func TestPacketsWaitForTheirPod(t *testing.T) {
	const waiting = 150
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "y/web@1 app=web")
	agent := c.Start(t)[0]
	c.Apply(t, "policies", onlyDB)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))

	expired := func() float64 {
		return labtest.Metrics(t, agent).Sum(failures, "failure", "unknown_pod", "verdict", "drop")
	}
	for attempt := range 5 {
		before := expired()
		pod := c.Attach(t, labtest.NewPod(fmt.Sprintf("x/new-%d@1 app=web", attempt)))[0]
		var wg sync.WaitGroup
		var reached atomic.Int64
		for i := range waiting {
			wg.Go(func() {
				answer, err := c.Hosts["y/db"].Probe(t.Context(), lab.UDP, netip.AddrPortFrom(pod.Addrs[i%2], 80), answerTime)
				if err == nil && answer.Outcome == lab.Connected {
					reached.Add(1)
				}
			})
		}
		c.Put(t, labtest.PodFile(pod.Name), pod.Object)
		wg.Wait()
		switch late := expired() - before; {
		case late == 0 && reached.Load() == waiting:
			return
		case late == 0:
			t.Fatalf("%d of %d packets were answered", reached.Load(), waiting)
		default:
			t.Logf("%v packets were pending for too long", late)
		}
	}
	t.Error("packets were pending for too long each time")
}
