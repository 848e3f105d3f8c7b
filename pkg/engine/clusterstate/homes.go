package clusterstate

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// homes tracks what Node objects say about addresses: the pod ranges of each node, and the
// addresses in its status. Kubelets write the statuses of their own pods and their own Node, but
// cannot change ranges. So a pod in a range of its own node is at home, and outranks the claims of
// pods elsewhere (NP-62).
type homes struct {
	own     string                    // the enforcing node; no other node shares its ranges
	ranges  map[string][]netip.Prefix // by node; empty for a node without ranges
	inRange map[netip.Prefix][]string // the nodes with this range
	lengths map[int]int               // the number of ranges with this prefix length
	hosts   map[netip.Addr][]string   // the nodes whose status has this address

	changed bool // since addresses were assigned
}

func newHomes(own string) homes {
	return homes{
		own:    own,
		ranges: map[string][]netip.Prefix{}, inRange: map[netip.Prefix][]string{}, lengths: map[int]int{}, hosts: map[netip.Addr][]string{},
	}
}

// replace replaces a node. old and now may be nil.
func (h *homes) replace(old, now *compile.Node) {
	existed, exists := old != nil, now != nil
	if !existed {
		old = &compile.Node{}
	}
	if !exists {
		now = &compile.Node{}
	}
	if existed != exists || !slices.Equal(old.PodRanges, now.PodRanges) {
		for _, r := range old.PodRanges {
			remove(h.inRange, r, old.Name)
			h.lengths[r.Bits()]--
		}
		for _, r := range now.PodRanges {
			h.inRange[r] = append(h.inRange[r], now.Name)
			h.lengths[r.Bits()]++
		}
		delete(h.ranges, old.Name)
		if exists {
			h.ranges[now.Name] = now.PodRanges
		}
		h.changed = true
	}
	if !slices.Equal(old.Addrs, now.Addrs) {
		for _, a := range old.Addrs {
			remove(h.hosts, a, old.Name)
		}
		for _, a := range now.Addrs {
			h.hosts[a] = append(h.hosts[a], now.Name)
		}
		h.changed = true
	}
}

func remove[K comparable](nodesBy map[K][]string, key K, node string) {
	nodesBy[key] = slices.DeleteFunc(nodesBy[key], func(n string) bool { return n == node })
	if len(nodesBy[key]) == 0 {
		delete(nodesBy, key)
	}
}

// within reports whether ranges include one of addr's family, and one that contains addr.
func within(ranges []netip.Prefix, addr netip.Addr) (ofFamily, inside bool) {
	for _, r := range ranges {
		ofFamily = ofFamily || r.Addr().Is4() == addr.Is4()
		inside = inside || r.Contains(addr)
	}
	return ofFamily, inside
}

// rangeOf returns the nodes with a range that contains addr.
func (h *homes) rangeOf(addr netip.Addr) []string {
	var nodes []string
	for bits, n := range h.lengths {
		if n == 0 || bits > addr.BitLen() {
			continue
		}
		r, _ := addr.Prefix(bits)
		nodes = append(nodes, h.inRange[r]...)
	}
	if slices.Contains(nodes, h.own) {
		return []string{h.own}
	}
	return nodes
}

// isOwn reports whether addr is in a range of the enforcing node.
func (h *homes) isOwn(addr netip.Addr) bool {
	_, inside := within(h.ranges[h.own], addr)
	return inside
}

// isHome reports whether addr is in a range of node, and in none of the enforcing node.
func (h *homes) isHome(node string, addr netip.Addr) bool {
	_, inside := within(h.ranges[node], addr)
	return inside && !h.isOwn(addr)
}

// hasRange reports whether node has a range of addr's family.
func (h *homes) hasRange(node string, addr netip.Addr) bool {
	ofFamily, _ := within(h.ranges[node], addr)
	return ofFamily
}

// isForeign reports whether addr, from the status of a Node, is in a range of other nodes only.
func (h *homes) isForeign(node string, addr netip.Addr) bool {
	nodes := h.rangeOf(addr)
	return len(nodes) > 0 && !slices.Contains(nodes, node)
}

// hasOtherHost reports whether the status of a Node other than node has addr.
func (h *homes) hasOtherHost(node string, addr netip.Addr) bool {
	return slices.ContainsFunc(h.hosts[addr], func(host string) bool { return host != node })
}

// mayBe reports whether node may have addr, which its status has: not if addr is in a range of other
// nodes only, and the status of one of those has it, too.
func (h *homes) mayBe(node string, addr netip.Addr) bool {
	return !h.isForeign(node, addr) || h.isForeignHost(addr)
}

// isForeignHost reports whether Nodes have addr in their status, all outside of their own ranges and
// in a range of another node: it may be a pod's.
func (h *homes) isForeignHost(addr netip.Addr) bool {
	return len(h.hosts[addr]) > 0 && !slices.ContainsFunc(h.hosts[addr], func(host string) bool { return !h.isForeign(host, addr) })
}
