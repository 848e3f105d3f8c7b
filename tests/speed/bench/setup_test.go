package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// newTestSetup returns a setup in which the kernel accepts. It skips the test where no lab
// can be built, unless skipping is forbidden.
func newTestSetup(t *testing.T) *setup {
	t.Helper()
	labtest.Need(t)
	s, err := newSetup(t.Context(), way{name: "accept", denies: true})
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

var few = amounts{flows: 500, connect: 20 * time.Millisecond, bystander: 20 * time.Millisecond, clients: 20 * time.Millisecond}

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
	line, err := s.flood(t.Context(), udp(s.classes.unknown), 500, 0)
	if err != nil || line.Value("lost") != 50 {
		t.Errorf("%v, %v, want 50 lost", line, err)
	}
}

// A run ends with an error if packets that should be denied are delivered.
func TestDeliveredDenialIsAnError(t *testing.T) {
	s := newTestSetup(t)
	if _, err := s.node.Run(t.Context(), "", "nft", "flush", "chain", "inet", hopTable, chainName); err != nil {
		t.Fatal(err)
	}
	for _, m := range measurements {
		_, err := m.do(t.Context(), s, few)
		if want := m.name == "Flood/denied"; (err != nil) != want {
			t.Errorf("%s: %v, want an error: %v", m.name, err, want)
		}
	}
}

func TestPacketsPastTheQueueAreAnError(t *testing.T) {
	s := newTestSetup(t)
	s.pid = os.Getpid() // as if this process decided
	for _, remembers := range []bool{false, true} {
		s.remembers = remembers
		for _, m := range measurements {
			line, err := m.do(t.Context(), s, few)
			if failed := err != nil && strings.Contains(err.Error(), "came to the queue"); failed == remembers {
				t.Errorf("%s, remembers: %v: %v, %v", m.name, remembers, line, err)
			}
		}
	}
}

// The floor accepts all packets of all its queues.
func TestFloorAcceptsAll(t *testing.T) {
	labtest.Need(t)
	binary := filepath.Join(t.TempDir(), "floor")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./floor").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s, err := newSetup(t.Context(), way{name: "floor"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.decideByLoop(t.Context(), 2, binary); err != nil {
		t.Fatal(err)
	}

	line, err := s.flood(t.Context(), udp(s.classes.unknown), 2000, 0)
	if err != nil || line.Value("lost") != 0 || line.Value("asked-percent") != 100 {
		t.Errorf("%v, %v, want none lost and all asked about", line, err)
	}
}

// The CPU time of a process is that of all its threads, and grows as it works.
func TestCPUTime(t *testing.T) {
	before, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for now := before; now <= before; {
		if now, err = cpuTime(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := cpuTime(1 << 23); err == nil {
		t.Errorf("a process that does not exist has used %v", got)
	}
}
