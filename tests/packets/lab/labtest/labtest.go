// Package labtest is shared by tests with real packets. It builds the agent, runs it on the
// nodes of a lab, changes the cluster with manifests, and compares probes with
// expectations. Tests call Main from their TestMain. They need root, nft and ip; without
// these they are skipped, unless NETNS_REQUIRED is set.
package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// Timeouts. They end tests that have failed; a passing test does not wait for them.
var (
	ReadyTimeout  = slowly(time.Minute)      // for an agent to become ready, even under a flood
	ChangeTimeout = slowly(15 * time.Second) // for a change to become effective
)

// slowly scales d, the duration on most machines, by the variable SLOWNESS: the factor by
// which this machine is slower, for example because it is emulated.
func slowly(d time.Duration) time.Duration {
	if factor, err := strconv.Atoi(os.Getenv("SLOWNESS")); err == nil && factor > 0 {
		return d * time.Duration(factor)
	}
	return d
}

// AgentBinary is the agent under test: the one in the variable AGENT_BINARY, for machines
// without Go, or one that Main builds.
var AgentBinary string

// Main builds the agent, runs the tests and returns the exit status.
func Main(m *testing.M) int {
	if AgentBinary = os.Getenv("AGENT_BINARY"); AgentBinary != "" || lab.Check() != nil {
		return m.Run() // each test is skipped with the reason
	}
	dir, err := os.MkdirTemp("", "labtest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if AgentBinary, err = lab.BuildAgent(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Need skips a test where no lab can be built, unless skipping is forbidden.
func Need(t *testing.T) {
	t.Helper()
	err := lab.Check()
	switch {
	case err == nil:
	case errors.Is(err, errors.ErrUnsupported) && os.Getenv("NETNS_REQUIRED") == "":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// NeedHard skips a test that takes long, unless HARD is set, as make test-hard does.
func NeedHard(t *testing.T) {
	t.Helper()
	if os.Getenv("HARD") == "" {
		t.Skip("takes long; make test-hard runs it")
	}
}

// SkipShort skips a test that waits for timers of the kernel or the agent if -short is set.
// CI runs all tests.
func SkipShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("waits for timers; runs without -short")
	}
}
