package agent

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/nodecheck"
	"sigs.k8s.io/kube-network-policies/pkg/policycache"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
)

// steeredCounter is the counter of the table behind netpol_steered_packets_total.
const steeredCounter = "steered"

// ownNode returns whether the Node of the agent must be there.
func (c Config) ownNode() policycache.Presence {
	if c.API == nil {
		return policycache.AmongOthers
	}
	return policycache.Required
}

// facts returns what is known of the node, for nodecheck.
func (a *agent) facts() nodecheck.Facts {
	a.mu.Lock()
	var pods []netip.Addr
	if a.steered != nil {
		pods = a.steered.Local()
	}
	sandboxed := slices.ContainsFunc(a.sandboxed, func(addr netip.Addr) bool { return slices.Contains(pods, addr) })
	a.mu.Unlock()
	f := nodecheck.Facts{OwnNode: a.cache.OwnNode(), Pods: pods, Sandboxed: sandboxed, Ranges: a.cache.PodRanges(), Conflicts: a.cache.AddressConflicts()}
	if a.links != nil {
		leads, known := a.links.LeadsToAny(pods)
		f.Unlinked = known && !leads
	}
	a.countSteered(&f)
	return f
}

// countSteered counts what was sent to the queues before what they received: a packet on its
// way in between counts as received.
func (a *agent) countSteered(f *nodecheck.Facts) {
	if a.steerer.HeldByOther() {
		return
	}
	steered, err := nodecheck.Counter(steer.TableName, steeredCounter)
	if err != nil {
		return // the steerer reports what is wrong with the table
	}
	if received, ok := a.peers.received(a.decides); ok {
		f.Holds, f.Steered, f.Received = true, steered, received
	}
}
