package attacks

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/lab"
	"sigs.k8s.io/kube-network-policies/tests/lab/labtest"
)

// TestFailingSystemCalls has the kernel fail calls of the agent's packet path, as it
// does when memory is short. The agent goes on, by a new socket where it needs one,
// and decides as before.
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
	failed := func(m lab.Metrics) float64 { return m.Sum("netpol_queue_call_errors_total") }
	rebound := func(m lab.Metrics) float64 { return m.Sum("netpol_queue_rebinds_total") }
	port := 8000
	for _, f := range []struct {
		inject string
		count  func(lab.Metrics) float64 // rises
	}{
		{"recvmmsg:error=ENOMEM:when=1", failed},
		{"recvmmsg:error=EIO:when=1..20", rebound},
		{"ppoll:error=ENOMEM:when=1", failed},
		{"ppoll:error=ENOMEM:when=1..20", failed}, // the sockets work: they are read without waiting
		{"recvmmsg:error=EBADF:when=1..20", rebound},
	} {
		t.Run(f.inject, func(t *testing.T) {
			before := f.count(labtest.Metrics(t, agent))
			detach := attachStrace(t, agent.PID(), f.inject)
			err := labtest.Within(t, func() bool {
				// A packet, answered or not: it is not delivered. The kernel asks about it,
				// because it remembers denials of other ports only.
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
		_ = cmd.Wait() // strace ends by the signal
	}
}
