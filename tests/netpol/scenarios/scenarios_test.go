package scenarios_test

import (
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
	"sigs.k8s.io/kube-network-policies/tests/netpol/simulated"
)

func TestSimulated(t *testing.T) {
	netpol.Runner{Backend: simulated.New(simulated.Compiled)}.Run(t, scenarios.All()...)
}

func TestOracle(t *testing.T) {
	netpol.Runner{Backend: simulated.New(simulated.Oracle)}.Run(t, scenarios.All()...)
}
