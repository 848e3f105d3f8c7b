package backend

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

func newBackend(t *testing.T) *Backend {
	t.Helper()
	labtest.Need(t)
	b, err := New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(b.Logs())
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// smoke are the scenarios that are played unless NETPOL_SUITE is "full": one for each kind
// of traffic.
var smoke = []string{
	"default deny of both directions",
	"pod and namespace: one peer",
	"a range includes both its ends and nothing beyond",
	"a protocol SCTP without a port",
	"from a machine outside only",
	"a namespace is labelled and is a peer",
	"a pod is recreated under its name",
	"a closed pod reaches itself, through its Service too",
	"no way leads to a closed pod",
	"a machine outside, through NodePorts",
	"a pod and its own node always reach each other",
	"a rule without ports lets ICMP in",
	"Pass leaves it to NetworkPolicy, v1alpha1",
	"Baseline denies by default, NetworkPolicy opens, v1beta1",
	"nodes, the own one too, v1beta1",
	"a pod reaches itself through its Service, unless an administrator denies it, v1alpha1",
}

func TestScenarios(t *testing.T) {
	chosen := scenarios.All()
	if os.Getenv("NETPOL_SUITE") != "full" {
		chosen = slices.DeleteFunc(chosen, func(s netpol.Scenario) bool { return !slices.Contains(smoke, s.Name) })
		if len(chosen) != len(smoke) {
			t.Errorf("%d of the %d scenarios of the smoke test exist", len(chosen), len(smoke))
		}
	}
	netpol.Runner{Backend: newBackend(t), Settle: time.Minute}.Run(t, chosen...) // what is right needs less
}

// TestHold holds connections of each kind: they get answers until a policy denies them.
func TestHold(t *testing.T) {
	model := netpol.Model{Namespaces: []string{"x"}, Pods: []string{"a", "b"}, Ports: []int32{80}}
	state := model.State()
	b := newBackend(t)
	if err := b.Apply(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	var connections []netpol.Connection
	for _, traffic := range model.Traffic() {
		connections = append(connections, netpol.Connection{From: "x/a", To: "x/b", Traffic: traffic, Silence: time.Minute})
	}
	held, err := b.Hold(t.Context(), connections)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	opened := time.Now()

	// Each has got an answer since then.
	silentFor(t, held, func(silent time.Duration) bool { return silent < time.Since(opened) })
	state = state.Clone()
	state.Apply(netpol.NewPolicy("x", "deny", netpol.Subject("pod=b"), netpol.DenyIngress()))
	if err := b.Apply(t.Context(), state); err != nil {
		t.Fatal(err)
	}

	silentFor(t, held, func(silent time.Duration) bool { return silent > time.Second })
}

// silentFor waits until all connections have been silent for a time that is right.
func silentFor(t *testing.T, held netpol.Held, right func(time.Duration) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := lab.Poll(ctx, func() (bool, error) {
		silent, err := held.Silent(ctx)
		return !slices.ContainsFunc(silent, func(d time.Duration) bool { return !right(d) }), err
	})
	if err != nil {
		t.Fatal(err)
	}
}
