package agent

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// crowded returns a snapshot with a pod whose rules select peers by a hundred selectors that
// must each be evaluated, and packets of n peers with different results.
func crowded(t *testing.T, deferred chan<- *policy.Evaluation, n int) (*policy.Snapshot, []packet.Packet) {
	t.Helper()
	chain := &policy.Chain{}
	for i := range 100 {
		selector, err := labels.Parse(fmt.Sprintf("app!=x%d", i))
		if err != nil {
			t.Fatal(err)
		}
		chain.Rules = append(chain.Rules, policy.Rule{
			Action: policy.Allow, Tier: policy.NetworkPolicyTier, AnyPort: true,
			Peers: []policy.Peer{{Pods: &policy.PodSelector{Namespace: "x", Pods: selector}}},
		})
	}
	subject := netip.MustParseAddr("10.0.0.1")
	endpoints := map[netip.Addr]*policy.Endpoint{subject: {Namespace: "x", Version: policy.NewVersion(), Ingress: chain}}
	var packets []packet.Packet
	for i := range n {
		addr := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		app := policy.NewLabels(map[string]string{"app": fmt.Sprint("x", i)})
		endpoints[addr] = &policy.Endpoint{Namespace: "x", Labels: app, Version: policy.NewVersion()}
		packets = append(packets, packet.Packet{Src: netip.AddrPortFrom(addr, 1), Dst: netip.AddrPortFrom(subject, 2), Proto: packet.TCP})
	}
	return policy.New(policy.Model{Endpoints: policy.NewEndpoints(endpoints), Deferred: deferred}), packets
}

func TestDeferredEvaluationsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		e := newEvaluator(reg)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		snapshot, packets := crowded(t, e.deferred, 20)
		for _, p := range packets {
			if d := snapshot.Evaluate(policy.Query{Packet: p, Defer: true}); d.Reason != policy.NotEvaluated {
				t.Fatalf("%v: %v, want not evaluated", p, d)
			}
		}
		for _, p := range packets {
			for snapshot.Evaluate(policy.Query{Packet: p, Defer: true}).Reason == policy.NotEvaluated {
				time.Sleep(time.Millisecond) // of the bubble's clock
			}
		}
		if got := testutil.ToFloat64(e.completed); got != float64(len(packets)) {
			t.Errorf("%v evaluations run, want %d", got, len(packets))
		}
		if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
			t.Errorf("lint: %v %v", problems, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
