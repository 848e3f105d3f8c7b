package netns

import (
	"os"
	"slices"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/lab/labtest"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
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

// smoke are the scenarios that are played unless NETPOL_SUITE is "full": one of
// each kind of traffic.
var smoke = []string{
	"default deny of both directions",
	"pod and namespace: one peer",
	"a range includes both its ends and nothing beyond",
	"a protocol SCTP without a port",
	"from a machine outside only",
	"a namespace is labelled and is a peer",
	"a pod is recreated under its name",
	"a closed pod reaches itself, through its Service too",
	"a pod and its own node always reach each other",
	"a rule without ports lets ICMP in",
	"Pass leaves it to NetworkPolicy, v1alpha1",
	"Baseline denies by default, NetworkPolicy opens, v1alpha2",
	"nodes, the own one too, v1alpha2",
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
	netpol.Runner{Backend: newBackend(t)}.Run(t, chosen...)
}
