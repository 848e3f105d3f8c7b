package agent

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
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
			tracker: inforce.New(inforce.Config{
				Node:      "n",
				Problem:   func(context.Context) error { return nil },
				Following: func() ([]inforce.Kind, int) { return []inforce.Kind{{Kind: kind, Seen: "100"}}, 0 },
			}),
			applied: step("applied"), settled: step("settled"), poked: make(chan struct{}, 1),
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		publish := func(version string, unlisted ...clusterwatch.PodQuery) {
			c.contains(clusterwatch.Contents{Versions: map[string]string{kind: version}, Unlisted: unlisted})
			synctest.Wait()
		}
		want := func(when, version string) {
			t.Helper()
			synctest.Wait()
			if got := c.tracker.Answer(ctx).Kinds[0].Version; got != version {
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
		publish("4", clusterwatch.PodQuery{Node: "x"})
		want("without pods that it needs", "3")
		cancel()
		<-ended
		if wanted := []string{"applied", "settled", "applied", "settled"}; !slices.Equal(events, wanted) {
			t.Errorf("events %q, want %q", events, wanted)
		}
	})
}
