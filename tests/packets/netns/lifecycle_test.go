package netns

import (
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
