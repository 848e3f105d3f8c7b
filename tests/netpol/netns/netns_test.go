package netns

import (
	"errors"
	"os"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/lab"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
)

func newBackend(t *testing.T) *Backend {
	t.Helper()
	if err := lab.Check(); errors.Is(err, errors.ErrUnsupported) && os.Getenv("NETNS_REQUIRED") == "" {
		t.Skip(err)
	}
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

func TestScenarios(t *testing.T) {
	netpol.Runner{Backend: newBackend(t)}.Run(t, scenarios.All()...)
}
