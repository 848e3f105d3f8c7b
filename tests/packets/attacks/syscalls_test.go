package attacks

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// TestFailingSystemCalls makes system calls of the agent's packet path fail, as if memory
// were short. The agent continues, with a new socket if it needs one, and its decisions do
// not change.
func TestFailingSystemCalls(t *testing.T) {
	labtest.NeedHard(t)
	if _, err := exec.LookPath("strace"); err != nil {
		t.Fatal(err)
	}
	c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "z/web@1 app=web")
	agent := c.Start(t)[0]
	c.Apply(t, "policies", onlyDB)
	expectations := []labtest.Expectation{labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("z/web", "x/web", "tcp/80")}
	c.Expect(t, expectations...)
	failed := func(m lab.Metrics) float64 {
		return m.Sum("netpol_queue_errors_total", "error", "receive") + m.Sum("netpol_queue_errors_total", "error", "wait")
	}
	rebound := func(m lab.Metrics) float64 { return m.Sum("netpol_queue_errors_total", "error", "rebind") }
	port := 8000
	for _, f := range []struct {
		inject string
		count  func(lab.Metrics) float64 // increases with each failure
	}{
		{"recvmmsg:error=ENOMEM:when=1", failed},
		{"recvmmsg:error=EIO:when=1..20", rebound},
		{"ppoll:error=ENOMEM:when=1", failed},
		{"ppoll:error=ENOMEM:when=1..20", failed}, // the sockets still work: they are read without waiting
		{"recvmmsg:error=EBADF:when=1..20", rebound},
	} {
		t.Run(f.inject, func(t *testing.T) {
			before := f.count(labtest.Metrics(t, agent))
			detach := attachStrace(t, agent.PID(), f.inject)
			err := labtest.Within(t, func() bool {
				// The packet is never delivered. The kernel queues it, because it remembers denials
				// only of other ports.
				port++
				c.Expect(t, labtest.No("z/web", "x/web", fmt.Sprintf("tcp/%d", port)))
				return f.count(labtest.Metrics(t, agent)) > before
			})
			detach()
			if err != nil {
				t.Fatalf("the agent does not count the failure: %v", err)
			}
			select {
			case <-agent.Ended():
				t.Fatal("the agent ended")
			default:
			}
			labtest.WaitReady(t, agent)
			c.Expect(t, expectations...)
		})
	}
}

// attachStrace makes system calls of a process fail until detach is called.
func attachStrace(t *testing.T, pid int, inject string) (detach func()) {
	t.Helper()
	cmd := exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-p", fmt.Sprint(pid), "-e", "inject="+inject)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := labtest.Within(t, func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		return err == nil && strings.Contains(string(status), fmt.Sprintf("TracerPid:\t%d\n", cmd.Process.Pid))
	}); err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait() // the signal ends strace
	}
}
