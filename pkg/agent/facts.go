package agent

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nodecheck"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// steeredCounter is the counter of the table behind netpol_steered_packets_total.
const steeredCounter = "steered"

// ownNode returns whether the agent's Node must exist. A folder of manifests need not contain
// it.
func (c Config) ownNode() clusterwatch.Presence {
	if c.API == nil {
		return clusterwatch.IfAnyNode
	}
	return clusterwatch.Required
}

// facts returns the state of the node that nodecheck evaluates.
func (a *agent) facts() nodecheck.Facts {
	var pods []netip.Addr
	s, sandboxes := a.steering.latest()
	if s != nil {
		pods = s.Local()
	}
	sandboxed := slices.ContainsFunc(sandboxes, func(addr netip.Addr) bool { return slices.Contains(pods, addr) })
	leads, known := a.steering.sources.links.LeadsToAny(pods)
	f := nodecheck.Facts{OwnNode: a.cache.OwnNode(), Pods: pods, Sandboxed: sandboxed, Ranges: a.cache.PodRanges(), Conflicts: a.cache.AddressConflicts(), Unlinked: known && !leads}
	a.countSteered(&f)
	return f
}

// countSteered reads the counter of steered packets before that of received ones, so that a
// packet between the two is not missing from the second.
func (a *agent) countSteered(f *nodecheck.Facts) {
	if a.steering.steerer.HeldByOther() {
		return
	}
	steered, err := nodecheck.Counter(steer.TableName, steeredCounter)
	if err != nil {
		return // the steerer reports what is wrong with the table
	}
	if received, ok := a.place.Received(a.cfg.decides); ok {
		f.Holds, f.Steered, f.Received = true, steered, received
	}
}
