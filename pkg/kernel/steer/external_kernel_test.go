package steer

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// startReal runs a Steerer on the real kernel until the test ends. It returns when sets are applied.
func startReal(t *testing.T, sets Sets) *Steerer {
	t.Helper()
	s := newReal(t, nil)
	startRun(t, s, sets)
	await(t, func() bool { return s.Healthy() == nil })
	return s
}

func TestKernelExternalChangesAreRepaired(t *testing.T) {
	n := newNode(t)
	s := startReal(t, isolated(n.b))
	want := listTable(t)
	for i, script := range []string{
		"flush ruleset",
		"delete table inet netpol-agent",
		"flush chain inet netpol-agent divert",
		"delete element inet netpol-agent ingress-v4 { 10.244.2.2 }",
		"replace rule inet netpol-agent divert handle $DROP accept",
		"delete rule inet netpol-agent divert handle $DROP",
		"add table inet netpol-agent { flags dormant; }",
	} {
		mustShell(t, "nft '"+strings.Replace(script, "$DROP", dropHandle(t), 1)+"'")
		await(t, func() bool { return s.externalChanges(byNotification) == float64(i+1) && s.Healthy() == nil })
		if got := listTable(t); got != want {
			t.Errorf("after %q:\n%s", script, got)
		}
	}
}

func TestKernelOwnAndUnrelatedCommitsAreIgnored(t *testing.T) {
	newNode(t)
	s := startReal(t, Sets{})
	for i := range 20 {
		mustShell(t, fmt.Sprintf("nft 'add table ip theirs; add set ip theirs s { type ipv4_addr; }; add element ip theirs s { 10.9.0.%d }'", i))
		s.Set(Sets{Ingress: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})}})
		await(t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.applied == s.desired
		})
	}
	// An external commit without effect ends the sequence, so that all earlier notifications
	// have been counted.
	mustShell(t, "nft 'add chain inet netpol-agent theirs; delete chain inet netpol-agent theirs'")
	await(t, func() bool { return s.externalChanges(byNotification) > 0 && s.Healthy() == nil })
	if n := s.externalChanges(byNotification); n != 1 {
		t.Errorf("%v external commits, want 1", n)
	}
	if n := testutil.ToFloat64(s.metrics.repairs); n != 0 {
		t.Errorf("%v repairs", n)
	}
}

// await polls until f is true.
func await(t *testing.T, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("condition not met within 30s")
		}
	}
}
