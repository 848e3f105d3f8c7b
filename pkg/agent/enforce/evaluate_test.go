package enforce

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// expensive has a pod that admits peers by a thousand selectors.
func expensive(t *testing.T, deferred chan<- *policy.Evaluation) *policy.Snapshot {
	t.Helper()
	chain := &policy.Chain{}
	for i := range 1000 {
		selector, err := labels.Parse(fmt.Sprintf("app!=x%d", i))
		if err != nil {
			t.Fatal(err)
		}
		chain.Rules = append(chain.Rules, policy.Rule{
			Action: policy.Allow, Tier: policy.NetworkPolicyTier, AnyPort: true,
			Peers: []policy.Peer{{Pods: &policy.PodSelector{Namespace: "x", Pods: selector}}},
		})
	}
	return policy.New(policy.Model{
		Deferred: deferred,
		Endpoints: policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{
			isolated: {Namespace: "x", Name: "isolated", Version: policy.NewVersion(), Ingress: chain},
			open:     {Namespace: "x", Name: "open", Version: policy.NewVersion()},
		}),
	})
}

func TestExpensivePeersAreUndecided(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	deferred := make(chan *policy.Evaluation, 1)
	// No failure policy accepts them.
	e := New(Config{Taps: counting(reg, logr.Discard()), FailOpen: true, FailOpenUnknownPacket: true})
	e.Swap(expensive(t, deferred))
	in := Input{Payload: tcp(open, isolated, 80)}
	if got := e.Decide(in); got != event.ShortWait {
		t.Errorf("got %d for a peer that is not evaluated, want %d", got, event.ShortWait)
	}
	in.Last = true
	if got := e.Decide(in); got != event.Drop {
		t.Errorf("got %d for a packet that cannot wait longer, want %d", got, event.Drop)
	}
	if got, want := counted(t, reg, "netpol_failure_policy_packets_total"), "not_evaluated/drop"; got != want {
		t.Errorf("counted %q as failure, want %q", got, want)
	}
	(<-deferred).Run()
	in.Last = false
	if got := e.Decide(in); got != event.Accept {
		t.Errorf("got %d once it is evaluated, want %d", got, event.Accept)
	}
}
