// Package confirmation is the module that finds out when what was published is in force, serves it, and lets
// clients wait for a change.
package confirmation

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// confirmer finds out when what was published is in force: stages follow a snapshot at once, and two
// of them change the kernel later.
type confirmer struct {
	tracker *tracker
	// applied returns when nftables is as the last snapshot wants it, marked when established
	// connections are.
	applied, marked func(context.Context) error

	poked chan struct{} // signals that contents has changed

	mu       sync.Mutex
	versions map[string]string // of the last published snapshot, by kind
	restores int
}

// Module returns the module.
func Module() module.Module {
	return module.Module{Name: "confirmation", New: func(core *module.Core) (module.Part, error) {
		uncertain := func() []inforce.Uncertain { return uncertainPolicies(core.Uncertain()) }
		c := &confirmer{
			tracker: newTracker(config{node: core.Node, problem: core.Problem, following: core.Following, uncertain: uncertain}),
			applied: core.WaitApplied, marked: core.WaitMarked,
			poked: make(chan struct{}, 1),
		}
		return module.Part{
			Single:   module.Single{InForce: c.tracker.answer},
			Contains: c.contains,
			Loops:    []func(context.Context) error{c.run},
			Serve:    []module.Handler{{To: module.Socket | module.Writer, Pattern: "GET " + inforce.Path, Handler: c.tracker}},
		}, nil
	}}
}

// contains is called with the versions that the published snapshot contains.
func (c *confirmer) contains(versions map[string]string, restores int) {
	c.mu.Lock()
	c.versions, c.restores = versions, restores
	c.mu.Unlock()
	runner.Signal(c.poked)
}

// run confirms one snapshot at a time until ctx ends. Those that are published meanwhile are confirmed
// together with the last of them.
func (c *confirmer) run(ctx context.Context) error {
	for {
		select {
		case <-c.poked:
		case <-ctx.Done():
			return nil
		}
		c.mu.Lock()
		versions, restores := c.versions, c.restores
		c.mu.Unlock()
		// The other way round, a packet that nftables does not steer yet could open a connection
		// after the check.
		if c.applied(ctx) != nil || c.marked(ctx) != nil {
			return nil
		}
		c.tracker.set(versions, restores)
	}
}

// maxUncertain bounds the pods that are compared with all rules.
const maxUncertain = 64

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
