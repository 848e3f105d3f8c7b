package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/lab/labtest"
)

// newTestSetup returns a setup where the kernel accepts. It skips the test where a lab
// is not possible, unless skipping is forbidden.
func newTestSetup(t *testing.T) *setup {
	t.Helper()
	labtest.Need(t)
	s, err := newSetup(t.Context(), "accept")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.decideByRules(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

var few = amounts{flows: 500, sockets: 500, paced: 500, connect: 20 * time.Millisecond, clients: 20 * time.Millisecond}

func TestRoundHasAllMeasurements(t *testing.T) {
	s := newTestSetup(t)
	var out strings.Builder
	if err := round(t.Context(), &out, []*setup{s}, few); err != nil {
		t.Fatal(err)
	}
	for _, m := range measurements {
		if !strings.Contains(out.String(), "Benchmark"+m.name+"/accept ") {
			t.Errorf("no line of %s in\n%s", m.name, &out)
		}
	}
}

// Lost flows are counted, and the wait for them ends.
func TestLostFlowsAreCounted(t *testing.T) {
	s := newTestSetup(t)
	const rule = `table inet lose { chain forward { type filter hook forward priority 0; udp sport 1024-1073 drop; }; }`
	if _, err := s.node.Run(t.Context(), rule, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	line, err := s.sendFlows(t.Context(), 500, 0)
	if err != nil || line.Values[2].Unit != "lost" || line.Values[2].Number != 50 {
		t.Errorf("%v, %v, want 50 lost", line, err)
	}
}

func TestPacketsPastTheQueueAreAnError(t *testing.T) {
	s := newTestSetup(t)
	s.pid = os.Getpid() // as if this process decided
	for _, m := range measurements {
		if line, err := m.do(t.Context(), s, few); err == nil || !strings.Contains(err.Error(), "came to the queue") {
			t.Errorf("%s: %v, %v, want an error", m.name, line, err)
		}
	}
}

func TestCPUTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stat")
	if err := os.WriteFile(path, []byte("7 (a (b) c) S 1 2 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := cpuTime(path, "c) ", 1, 3); got != 4*tick || err != nil {
		t.Errorf("got %v, %v, want %v", got, err, 4*tick)
	}
	for _, columns := range [][]int{{0}, {4}} {
		if got, err := cpuTime(path, "c) ", columns...); err == nil {
			t.Errorf("columns %v: %v, want an error", columns, got)
		}
	}
}
