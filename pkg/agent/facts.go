package agent

import (
	"context"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
)

// facts returns what the agent knows about the node.
func (a *agent) facts() module.Facts {
	var pods []netip.Addr
	s, sandboxes := a.steering.latest()
	if s != nil {
		pods = s.Local()
	}
	sandboxed := slices.ContainsFunc(sandboxes, func(addr netip.Addr) bool { return slices.Contains(pods, addr) })
	leads, known := a.steering.sources.links.LeadsToAny(pods)
	f := module.Facts{OwnNode: a.cache.OwnNode(), Pods: pods, Sandboxed: sandboxed, Ranges: a.cache.PodRanges(), Conflicts: a.cache.AddressConflicts(), Unlinked: known && !leads}
	a.count(&f)
	return f
}

// count reads the counter of steered packets before that of received ones, so that a packet
// between the two is not missing from the second.
func (a *agent) count(f *module.Facts) {
	other := a.steering.steerer.HeldByOther()
	ctx, cancel := context.WithTimeout(context.Background(), stateTimeout)
	defer cancel()
	steered, untracked, err := a.steering.steerer.Counted(ctx)
	if err != nil {
		return // the steerer reports what is wrong with the table
	}
	f.Untracked, f.Counted = untracked, true
	if received, ok := a.place.Received(a.cfg.decides); ok && !other {
		f.Holds, f.Steered, f.Received = true, steered, received
	}
}
