package clusterstate

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// forward sets the sources of packets that the pods of a namespace may forward according to its
// annotation. It reports whether they changed.
func (c *Cluster) forward(name string, sources []netip.Prefix) bool {
	ns := c.namespace(name)
	defer c.forget(name, ns)
	if slices.Equal(ns.forwards, sources) {
		return false
	}
	ns.forwards = sources
	c.derived, c.addresses.occupied = nil, nil
	return true
}

// deriveForwarded sets what pods may forward: the prefixes of annotations, except those that
// contain addresses of pods. A packet from such a prefix could be taken for one of that pod (FW-3).
func (c *Cluster) deriveForwarded(d *derived) {
	var all []netip.Prefix
	for _, ns := range c.namespaces {
		all = append(all, ns.forwards...)
	}
	if len(all) == 0 {
		return
	}
	if c.addresses.occupied == nil {
		c.addresses.countWithin(all)
	}
	d.forwarded = map[string][]netip.Prefix{}
	podRanges := c.rangesOf(func(string) bool { return true })
	for name, ns := range c.namespaces {
		for _, p := range ns.forwards {
			switch {
			case slices.ContainsFunc(podRanges, p.Overlaps):
				d.findings = append(d.findings, compile.RefuseForwardedSource(name, p, "overlaps the pod range of a node"))
			case c.addresses.occupied[p] > 0:
				d.findings = append(d.findings, compile.RefuseForwardedSource(name, p, "contains the address of a pod"))
			default:
				d.forwarded[name] = append(d.forwarded[name], p)
			}
		}
	}
}

// countWithin starts to count the addresses of pods in each of prefixes.
func (a *addresses) countWithin(prefixes []netip.Prefix) {
	a.occupied = make(map[netip.Prefix]int, len(prefixes))
	for _, p := range prefixes {
		a.occupied[p] = 0
	}
	owners := a.current()
	for addr := range owners.All() {
		a.add(addr, +1)
	}
	for addr := range a.unknown {
		a.add(addr, +1)
	}
	a.occupancyChanged = false
}

// countOccupied updates the counts if addr has become occupied or free.
func (a *addresses) countOccupied(addr netip.Addr, before, now bool) {
	switch {
	case len(a.occupied) == 0 || before == now:
	case now:
		a.add(addr, +1)
	default:
		a.add(addr, -1)
	}
}

func (a *addresses) add(addr netip.Addr, n int) {
	for p, count := range a.occupied {
		if p.Contains(addr) {
			a.occupied[p] = count + n
			a.occupancyChanged = a.occupancyChanged || count == 0 || count+n == 0
		}
	}
}
