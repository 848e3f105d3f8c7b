package backend

import (
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// TestPeer plays scenarios with this project's agent in the place of another provider's: the API server
// has every change, with the defaults of policies.
func TestPeer(t *testing.T) {
	labtest.Need(t)
	binary, err := agentBinary(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := StartPeer(t.Context(), Peer{Program: binary, Flags: func(node, kubeconfig string) []string {
		return []string{"--kubeconfig=" + kubeconfig, "--hostname-override=" + node}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	names := []string{
		"no policy types and an egress rule isolate both directions", "a name with another number on each pod", "a policy is deleted and comes back",
	}
	chosen := slices.DeleteFunc(scenarios.All(), func(s netpol.Scenario) bool { return !slices.Contains(names, s.Name) })
	if len(chosen) != len(names) {
		t.Fatalf("%d of %d scenarios exist", len(chosen), len(names))
	}
	netpol.Runner{Backend: b, Settle: time.Minute}.Run(t, chosen...)
}

// What a cluster without its agent lets through is no result of that agent.
func TestPeerThatEnds(t *testing.T) {
	labtest.Need(t)
	b, err := StartPeer(t.Context(), Peer{Program: "false", Flags: func(string, string) []string { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	<-b.peers.processes[0].Ended()
	if _, err := b.Probe(t.Context(), nil); err == nil {
		t.Error("connections are made although the agent has ended")
	}
}
