package agent

import (
	"net/netip"
	"slices"
)

// client returns the pod at the address of a client of the HTTP server, if any is known there,
// and whether the address belongs to pods of this node: it is that of one, is in their ranges,
// or is reached by an interface that leads to pods.
func (a *agent) client(addr netip.Addr) (pod string, ours bool) {
	a.mu.Lock()
	snapshot, sandboxed := a.steered, slices.Contains(a.sandboxed, addr)
	a.mu.Unlock()
	var local []netip.Addr
	if snapshot != nil {
		local = snapshot.Local()
		if e := snapshot.Endpoint(addr); e != nil {
			pod = e.String()
		}
	}
	if _, found := slices.BinarySearchFunc(local, addr, netip.Addr.Compare); found || sandboxed {
		return pod, true
	}
	inRange := slices.ContainsFunc(a.cache.PodRanges(), func(r netip.Prefix) bool { return r.Contains(addr) })
	return pod, inRange || a.links != nil && a.links.LeadsToPods(addr, local)
}
