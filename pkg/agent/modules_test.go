package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// TestModulesFollowSnapshots: each module prepares for a snapshot before it decides, and withdraws what an
// earlier one decided after nftables has it.
func TestModulesFollowSnapshots(t *testing.T) {
	pod := netip.MustParseAddr("10.244.1.2")
	a := newTestAgent(t, prometheus.NewRegistry())
	var events []string
	steered := func(s *policy.Snapshot) bool { latest, _ := a.steering.latest(); return latest == s }
	first, second := administered(pod), administered(pod)
	a.parts = []module.Part{{}, {
		Prepare: func(s *policy.Snapshot) {
			events = append(events, "prepare")
			if _, _, deciding := a.enforcer.EvaluateOpened(packet.Packet{}, false); deciding == s || steered(s) {
				t.Error("a module prepares for a snapshot that decides")
			}
		},
		Withdraw: func(_ context.Context, addrs []netip.Addr, all bool) {
			events = append(events, "withdraw")
			if !steered(second) || !all && !slices.Contains(addrs, pod) {
				t.Errorf("a module withdraws %v, all: %v, before the second snapshot is effective", addrs, all)
			}
		},
	}}
	_, ctx := ktesting.NewTestContext(t)
	a.publish(ctx, first, time.Now(), true)
	a.publish(ctx, second, time.Now(), true)
	if want := []string{"prepare", "prepare", "withdraw"}; !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
}

// TestModulesBeginBeforeTheCluster, and the agent is ready if they are.
func TestModulesBeginBeforeTheCluster(t *testing.T) {
	a := newTestAgent(t, prometheus.NewRegistry())
	begun := false
	a.cfg.Modules = []module.Module{{Name: "late"}}
	a.parts = []module.Part{{Begin: func(context.Context) { begun = true }, Ready: func() error { return errors.New("not yet") }}}
	l := append(a.modules(), stage{name: "cluster", begin: func(context.Context) {
		if !begun {
			t.Error("the cluster is read before a module begins")
		}
	}})
	if err := l.run(t.Context()); err != nil || !begun {
		t.Errorf("begun: %v, error %v", begun, err)
	}
	if err := l.ready(); err == nil || !strings.Contains(err.Error(), "not yet") {
		t.Errorf("ready although a module is not: %v", err)
	}
}
