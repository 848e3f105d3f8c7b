package confirmation

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// A version is in force when nftables and then the connections are as the snapshot wants them. The
// contents of snapshots that are published meanwhile are confirmed afterwards, and those that lack pods
// never.
func TestConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const kind = "NetworkPolicy"
		var events []string
		steps := make(chan struct{})
		step := func(name string) func(context.Context) error {
			return func(ctx context.Context) error {
				events = append(events, name)
				select {
				case <-steps:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		c := &confirmer{
			tracker: newTracker(config{
				node:      "n",
				problem:   func(context.Context) error { return nil },
				following: func() ([]inforce.Kind, int) { return []inforce.Kind{{Kind: kind, Seen: "100"}}, 0 },
			}),
			applied: step("applied"), marked: step("marked"), poked: make(chan struct{}, 1),
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.run(ctx) }()
		publish := func(version string) {
			c.contains(map[string]string{kind: version}, 0)
			synctest.Wait()
		}
		want := func(when, version string) {
			t.Helper()
			synctest.Wait()
			if got := c.tracker.answer(ctx).Kinds[0].Version; got != version {
				t.Errorf("%s, version %q is in force, want %q", when, got, version)
			}
		}
		publish("1")
		want("when it is published", "")
		steps <- struct{}{}
		want("when nftables is written", "")
		publish("2")
		publish("3")
		steps <- struct{}{}
		want("when connections are checked", "1")
		steps <- struct{}{}
		steps <- struct{}{}
		want("after both again", "3")
		cancel()
		<-ended
		if wanted := []string{"applied", "marked", "applied", "marked"}; !slices.Equal(events, wanted) {
			t.Errorf("events %q, want %q", events, wanted)
		}
	})
}

// An answer lists the policies that select uncertain pods. If pods or policies are too many to compare or to
// list, it says so of every policy.
func TestUncertainPolicies(t *testing.T) {
	here := netip.MustParseAddr("10.1.0.1")
	snapshot := func(policies int) *policy.Snapshot {
		chain := &policy.Chain{}
		for i := range policies {
			chain.Rules = append(chain.Rules, policy.Rule{
				Action: policy.Allow, Tier: policy.NetworkPolicyTier, AnyPort: true,
				Policy: &policy.Ref{Kind: "NetworkPolicy", Namespace: "x", Name: fmt.Sprintf("p%02d", i)},
				Peers:  []policy.Peer{{Pods: &policy.PodSelector{Namespace: "y", Pods: labels.Everything()}}},
			})
		}
		endpoints := policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{here: {Namespace: "x", Name: "web", Ingress: chain}})
		return policy.New(policy.Model{Endpoints: endpoints, Local: policy.NewLocal(endpoints, []netip.Addr{here})})
	}
	pods := func(n int) (all []*policy.Endpoint) {
		for i := range n {
			all = append(all, &policy.Endpoint{Namespace: "y", Name: fmt.Sprintf("pod%02d", i)})
		}
		return all
	}
	for name, tt := range map[string]struct {
		pods     []*policy.Endpoint
		snapshot *policy.Snapshot
		want     string
	}{
		"none":                {nil, snapshot(1), "[]"},
		"before a snapshot":   {pods(1), nil, "[]"},
		"two policies":        {pods(3), snapshot(2), "[{NetworkPolicy x p00 3 y/pod00} {NetworkPolicy x p01 3 y/pod00}]"},
		"of no policy":        {[]*policy.Endpoint{{Namespace: "z", Name: "a"}}, snapshot(1), "[]"},
		"too many policies":   {pods(2), snapshot(bounds.InForceUncertain + 1), "[{   2 y/pod00}]"},
		"too many pods":       {pods(maxUncertain + 1), snapshot(1), "[{   65 y/pod00}]"},
		"as many as possible": {pods(maxUncertain), snapshot(1), "[{NetworkPolicy x p00 64 y/pod00}]"},
	} {
		if got := fmt.Sprint(uncertainPolicies(tt.pods, tt.snapshot)); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}
