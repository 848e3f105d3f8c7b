package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// confirmer finds out when what was published is in force: stages follow a snapshot at once, and two
// of them change the kernel later.
type confirmer struct {
	tracker *inforce.Tracker
	// applied returns when nftables is as the last snapshot wants it, marked when established
	// connections are.
	applied, marked func(context.Context) error

	poked chan struct{} // signals that contents has changed

	mu       sync.Mutex
	contents clusterwatch.Contents // of the last published snapshot
}

func (a *agent) newConfirmer() *confirmer {
	return &confirmer{
		tracker: inforce.New(inforce.Config{Node: a.cfg.NodeName, Problem: a.notInForce, Following: a.following, Uncertain: a.uncertain}),
		applied: a.steering.steerer.WaitApplied,
		marked:  a.blocker.WaitMarked,
		poked:   make(chan struct{}, 1),
	}
}

// contains is called with the contents of the published snapshot.
func (c *confirmer) contains(contents clusterwatch.Contents) {
	c.mu.Lock()
	c.contents = contents
	c.mu.Unlock()
	runner.Signal(c.poked)
}

// Run confirms one snapshot at a time until ctx ends. Those that are published meanwhile are confirmed
// together with the last of them.
func (c *confirmer) Run(ctx context.Context) error {
	for {
		select {
		case <-c.poked:
		case <-ctx.Done():
			return nil
		}
		c.mu.Lock()
		contents := c.contents
		c.mu.Unlock()
		// The other way round, a packet that nftables does not steer yet could open a connection
		// after the check.
		if c.applied(ctx) != nil || c.marked(ctx) != nil {
			return nil
		}
		c.tracker.Set(contents.Versions, contents.Restores)
	}
}

// following is inforce.Config.Following.
func (a *agent) following() (kinds []inforce.Kind, restores int) {
	following, restores := a.cache.Following()
	for _, f := range following {
		k := inforce.Kind{Kind: f.Kind, Seen: f.Seen}
		if f.Err != nil {
			k.Behind = f.Err.Error()
		}
		kinds = append(kinds, k)
	}
	return kinds, restores
}

// maxUncertain bounds the pods that are compared with all rules.
const maxUncertain = 64

// uncertain is inforce.Config.Uncertain.
func (a *agent) uncertain() []inforce.Uncertain {
	snapshot, _ := a.steering.latest()
	return uncertainPolicies(a.cache.Uncertain(), snapshot)
}

// uncertainPolicies returns the policies of a snapshot, nil before the first, that select some of pods.
func uncertainPolicies(pods []*policy.Endpoint, snapshot *policy.Snapshot) []inforce.Uncertain {
	switch {
	case len(pods) == 0 || snapshot == nil:
		return nil
	case len(pods) > maxUncertain:
		return uncertainAll(pods)
	}
	var all []inforce.Uncertain
	for ref, named := range snapshot.Naming(pods) {
		all = append(all, inforce.Uncertain{Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name, Pods: len(named), Example: named[0].String()})
	}
	if len(all) > bounds.InForceUncertain {
		return uncertainAll(pods)
	}
	slices.SortFunc(all, func(x, y inforce.Uncertain) int {
		return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return all
}

// uncertainAll stands for more policies than an answer lists.
func uncertainAll(pods []*policy.Endpoint) []inforce.Uncertain {
	return []inforce.Uncertain{{Pods: len(pods), Example: pods[0].String()}}
}

// notInForce returns why packets may be decided by something else than the snapshot whose enforcement
// was confirmed last, nil if they are not.
func (a *agent) notInForce(ctx context.Context) error {
	if a.cfg.Audit {
		return errors.New("--audit: policies are evaluated, and none is enforced")
	}
	if err := errors.Join(a.live(), a.readiness()); err != nil {
		return err
	}
	if err := a.steering.steerer.Verify(ctx); err != nil {
		return fmt.Errorf("steering: %w", err)
	}
	if err := a.blocker.Healthy(); err != nil {
		return err
	}
	if classes := a.single.Classes; classes != nil {
		return classes.Healthy()
	}
	return nil
}
