package agent

import (
	"net/netip"
	"slices"
)

// client returns the pod at the address of an HTTP client, empty if none is known, and whether
// the address belongs to pods of this node: a pod has it, it is in the node's pod ranges, or
// its route uses an interface that leads to pods.
func (a *agent) client(addr netip.Addr) (pod string, ours bool) {
	snapshot, sandboxes := a.steering.latest()
	var local []netip.Addr
	if snapshot != nil {
		local = snapshot.Local()
		if e := snapshot.Endpoint(addr); e != nil {
			pod = e.String()
		}
	}
	if _, found := slices.BinarySearchFunc(local, addr, netip.Addr.Compare); found || slices.Contains(sandboxes, addr) {
		return pod, true
	}
	return pod, contains(a.cache.PodRanges(), addr) || a.steering.sources.links.LeadsToPods(addr, local)
}

func contains(ranges []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(addr) })
}
